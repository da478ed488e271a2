"""The stages 10-base and 31-system, and the clock settings of 40-network."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.cloud_init.stage_sandbox import Sandbox


def prepared(root: Path, **env: str) -> tuple[Path, list[str]]:
    """Run 10-base and 31-system on a node. Return the node's root and the commands that the stages ran."""
    for folder in ("etc", "usr/local/bin"):
        (root / folder).mkdir(parents=True)
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n# trainyard\n# end of trainyard\n")
    commands = []
    for stage in ("10-base", "31-system"):
        ran = Sandbox(root, ("sysctl", "systemctl"), {}).run(stage, **{"SHARED_DOMAIN": "", **env}).passed()
        commands += ran.commands
    return root, commands


def base(tmp_path: Path, domain: str) -> Path:
    """Run the stages on a node. Return the node's root."""
    return prepared(tmp_path, SHARED_DOMAIN=domain)[0]


def test_stages_without_a_change_start_no_programs(tmp_path: Path) -> None:
    root, first = prepared(tmp_path)
    assert "systemctl try-reload-or-restart --no-block ssh.service" in first
    assert any(command.startswith("sysctl ") for command in first)
    for stage in ("10-base", "31-system"):
        assert Sandbox(root, ("sysctl", "systemctl"), {}).run(stage, SHARED_DOMAIN="").commands == []


@pytest.mark.parametrize("owned", [None, "usr/bin/python", "usr/local/bin/python"])
def test_python_is_python3_unless_the_host_has_one(tmp_path: Path, owned: str | None) -> None:
    for folder in ("usr/bin", "usr/local/bin"):
        (tmp_path / folder).mkdir(parents=True)
    if owned is not None:
        (tmp_path / owned).write_text("the owner's\n")
    Sandbox(tmp_path, ("sysctl", "systemctl"), {}).run("31-system", SHARED_DOMAIN="").passed()
    link = tmp_path / "usr/local/bin/python"
    assert link.is_symlink() is (owned is None)
    assert owned is None or (tmp_path / owned).read_text() == "the owner's\n"
    if owned is None:
        assert str(link.readlink()).endswith("/usr/bin/python3")


@pytest.mark.parametrize("domain", ["", "defaultv4iddomain.com"])
def test_nfs_domain_is_written_to_idmapd_conf(tmp_path: Path, domain: str) -> None:
    file = base(tmp_path, domain) / "etc/idmapd.conf.d/trainyard.conf"
    assert file.exists() is bool(domain)
    if domain:
        assert file.read_text() == f"[General]\nDomain = {domain}\n"


@pytest.mark.parametrize("role", ["head", "worker"])
def test_chrony_is_restarted_after_a_change(tmp_path: Path, role: str) -> None:
    (tmp_path / "etc/trainyard").mkdir(parents=True)
    (tmp_path / "etc/trainyard/fabric.env").write_text("NCCL_IB_DISABLE=1\n")
    (tmp_path / "etc/chrony").mkdir()
    (tmp_path / "etc/chrony/chrony.conf").write_text("confdir /etc/chrony/conf.d\nmakestep 1 3\n")
    node = Sandbox(tmp_path, ("ip", "systemctl"), {"ip": "0 3: eth1    inet 10.0.0.4/24 scope global"})
    ran = node.run(
        "40-network", ROLE=role, PRIVATE_IP="10.0.0.4", NETWORK="10.0.0.0/20", HEAD_IP="10.0.0.4", FABRIC="gvnic"
    ).passed()
    assert "systemctl restart --no-block chrony.service" in ran.commands
    files = [(tmp_path / "etc/chrony" / name).read_text() for name in ("chrony.conf", "conf.d/trainyard.conf")]
    assert re.findall("^makestep .*", "".join(files), re.M) == ["makestep 1 -1"]


@pytest.mark.parametrize(
    ("fabric", "line"), [("gvnic", "NCCL_SOCKET_IFNAME==eth1"), ("gpudirect-tcpxo", "NCCL_SOCKET_IFNAME=eth1")]
)
def test_interface_has_the_form_of_the_fabric_plugin(tmp_path: Path, fabric: str, line: str) -> None:
    """Google's guest config checker compares the value with the name in Google's profile."""
    node = Sandbox(tmp_path, ("ip", "systemctl"), {"ip": "0 3: eth1    inet 10.0.0.4/24 scope global"})
    env = {"PRIVATE_IP": "10.0.0.4", "NETWORK": "10.0.0.0/20", "HEAD_IP": "10.0.0.4", "FABRIC": fabric}
    assert node.run("40-network", ROLE="worker", **env).code == 0
    assert (tmp_path / "etc/trainyard/fabric.env").read_text().splitlines()[-1] == line


_DEFAULTS = """
Unattended-Upgrade::Origins-Pattern { "origin=Debian,codename=trixie,label=Debian"; };
Unattended-Upgrade::Allowed-Origins { "Ubuntu:noble-updates"; };
Unattended-Upgrade::Package-Blacklist {};
"""
"""The same lists as in the distribution's 50unattended-upgrades, which apt reads first."""


def apt_list(root: Path, key: str) -> list[str]:
    """Return a list in apt's configuration after apt has read the defaults and the stage's file."""
    merged = root / "merged.conf"
    parts = 'Dir::Etc::parts "/nonexistent";\nDir::Etc::main "/nonexistent";\n'
    merged.write_text(parts + _DEFAULTS + (root / "etc/apt/apt.conf.d/91trainyard-updates").read_text())
    done = subprocess.run(
        ["apt-config", "dump"], env={"APT_CONFIG": str(merged)}, capture_output=True, text=True, check=True
    )
    return re.findall(rf'^Unattended-Upgrade::{key}:: "(.*)";$', done.stdout, re.M)


def test_updates_come_from_security_archives_only(tmp_path: Path) -> None:
    root, _ = prepared(tmp_path)
    assert apt_list(root, "Allowed-Origins") == []
    assert apt_list(root, "Origins-Pattern") == [
        "origin=Debian,codename=${distro_codename}-security,label=Debian-Security",
        "origin=Ubuntu,suite=${distro_codename}-security",
        "origin=Ubuntu,suite=${distro_codename}",
    ]


_HELD = """
linux-image-azure linux-modules-nvidia-580-gcp linux-headers-6.12.1-cloud-amd64 nvidia-driver-580-server
libnvidia-compute-580 nvidia-fabricmanager-580 cuda-drivers libcuda1 libnccl2 datacenter-gpu-manager-4-core doca-ofed
rdma-core ibverbs-providers libibverbs1 librdmacm1t64 slurmd slurm-client libslurm42t64 libpam-slurm-adopt munge
libmunge2 libpmix2t64 docker.io docker-ce containerd nfs-common nfs-kernel-server mariadb-server mysql-server-8.0
google-guest-agent google-compute-engine google-compute-engine-oslogin google-osconfig-agent walinuxagent
"""
_UPDATED = """
openssl libssl3t64 openssh-server libc6 systemd sudo python3.13 runc curl bash nftables chrony libnfs14 rsync
"""


def test_packages_that_jobs_depend_on_are_not_updated(tmp_path: Path) -> None:
    expressions = apt_list(prepared(tmp_path)[0], "Package-Blacklist")
    # unattended-upgrades 2.12 also converts such expressions to apt pins (python_regex_is_posix).
    assert all(re.fullmatch(r"[-a-zA-Z0-9^$+.:]*", expression) for expression in expressions)
    held = {
        name for name in (_HELD + _UPDATED).split() if any(re.match(expression, name) for expression in expressions)
    }
    assert held == set(_HELD.split())


@pytest.mark.parametrize("existing", ["", "yes"])
def test_existing_hosts_get_no_automatic_updates(tmp_path: Path, existing: str) -> None:
    root, commands = prepared(tmp_path, TEST_LEDGER=existing)
    ours = not existing
    timer = "trainyard-updates.timer"
    assert (root / f"etc/systemd/system/timers.target.wants/{timer}").is_symlink() is ours
    assert (f"systemctl start --no-block {timer}" in commands) is ours
    assert (root / "etc/apt/apt.conf.d/91trainyard-updates").exists() is ours


def test_needrestart_does_not_restart_services_of_jobs(tmp_path: Path) -> None:
    (tmp_path / "etc/needrestart").mkdir(parents=True)
    (tmp_path / "etc/hosts").write_text("# trainyard\n# end of trainyard\n")
    (tmp_path / "usr/local/bin").mkdir(parents=True)
    Sandbox(tmp_path, ("sysctl", "systemctl"), {}).run("31-system", SHARED_DOMAIN="").passed()
    settings = tmp_path / "etc/needrestart/conf.d/trainyard.conf"
    # Reads the folder and looks up services in the same way as needrestart 3.11. The table has its default entries.
    program = """
our %nrconf = (override_rc => { qr(^dbus) => 0, qr(^docker) => 0 });
eval do { local(@ARGV, $/) = $ARGV[0]; <> };
die $@ if $@;
for my $rc (qw(slurmd slurmctld slurmdbd munge mariadb nfs-server nfs-mountd rpcbind docker containerd
               nvidia-fabricmanager trainyard-bootstrap google-guest-agent google-osconfig-agent walinuxagent
               ssh chrony cron)) {
  my $restart = 1;
  for my $re (sort keys %{$nrconf{override_rc}}) {
    next unless "$rc.service" =~ /$re/;
    $restart = $nrconf{override_rc}->{$re};
    last;
  }
  print "$rc " if $restart;
}
"""
    done = subprocess.run(["perl", "-e", program, str(settings)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["ssh", "chrony", "cron"]


@pytest.mark.parametrize(
    ("torch", "scheduler", "lines"),
    [
        (True, "none", "USE_LIBUV=0\n"),
        (False, "none", None),
        (True, "slurm", "USE_LIBUV=0\nSINFO_ALL=1\nSQUEUE_ALL=1\nSCONTROL_ALL=1\n"),
    ],
)
def test_sessions_have_variables_for_torch_and_slurm(
    tmp_path: Path, torch: bool, scheduler: str, lines: str | None
) -> None:
    if torch:
        (tmp_path / "usr/lib/python3/dist-packages/torch").mkdir(parents=True)
    (tmp_path / "usr/local/bin").mkdir(parents=True)
    Sandbox(tmp_path, ("sysctl", "systemctl"), {}).run("31-system", SHARED_DOMAIN="", SCHEDULER=scheduler).passed()
    file = tmp_path / "etc/environment"
    assert (file.read_text() if file.exists() else None) == lines
