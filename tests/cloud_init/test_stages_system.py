"""The stages 10-base, 31-system and 40-network, the job user's key, and the nodes' torchrun with a fake torch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cloud_init.stage_sandbox import STAGES, Ran, Sandbox, bash, function
from tests.offline.loopback_sshd import make_key, sshd_binary
from trainyard import project

BLOCK = "127.0.0.1 localhost\n# trainyard\n# end of trainyard\n"


def system(root: Path, *stages: str, **env: str) -> Ran:
    """Run stages on a node, by default 31-system. Return the last result with the commands of all stages."""
    node, commands = Sandbox(root, ("sysctl", "systemctl")), list[str]()
    (root / "usr/local/bin").mkdir(parents=True, exist_ok=True)
    node.write({"etc/hosts": BLOCK})
    for stage in stages or ("31-system",):
        ran = node.run(stage, **{"SHARED_DOMAIN": "", **env}).passed()
        commands += ran.commands
    ran.commands = commands
    return ran


BOTH = ("10-base", "31-system")


def test_stages_without_a_change_start_no_programs(tmp_path: Path) -> None:
    first = system(tmp_path, *BOTH)
    assert "systemctl try-reload-or-restart --no-block ssh.service" in first.commands
    assert first.calls("sysctl ")
    node = Sandbox(tmp_path, ("sysctl", "systemctl"))
    assert [node.run(stage, SHARED_DOMAIN="").commands for stage in BOTH] == [[], []]


@pytest.mark.parametrize(
    ("owned", "links"),
    [
        ([], {"python": "/usr/bin/python3", "torchrun": "/usr/local/lib/trainyard/torchrun"}),
        (["usr/bin/python"], {"torchrun": "/usr/local/lib/trainyard/torchrun"}),
        (["usr/local/bin/python", "usr/local/bin/torchrun"], {}),
    ],
)
def test_missing_python_and_torchrun_are_links(tmp_path: Path, owned: list[str], links: dict[str, str]) -> None:
    Sandbox(tmp_path).write(dict.fromkeys(owned, "the owner's\n"))
    (tmp_path / "usr/bin").mkdir(parents=True, exist_ok=True)
    system(tmp_path, TEST_LEDGER="yes")
    found = [path for path in (tmp_path / "usr/local/bin").iterdir() if path.is_symlink()]
    assert {path.name: str(path.readlink()).removeprefix(str(tmp_path)) for path in found} == links
    assert [(tmp_path / path).read_text() for path in owned] == ["the owner's\n"] * len(owned)


@pytest.mark.parametrize("domain", ["", "defaultv4iddomain.com"])
def test_nfs_domain_is_written_to_idmapd_conf(tmp_path: Path, domain: str) -> None:
    system(tmp_path, SHARED_DOMAIN=domain)
    written = f"[General]\nDomain = {domain}\n" if domain else None
    assert Sandbox(tmp_path).read("etc/idmapd.conf.d/trainyard.conf") == written


@pytest.mark.parametrize("role", ["head", "worker"])
@pytest.mark.parametrize(
    ("fabric", "line"), [("gvnic", "NCCL_SOCKET_IFNAME==eth1"), ("gpudirect-tcpxo", "NCCL_SOCKET_IFNAME=eth1")]
)
def test_network_stage_sets_clock_and_interface(tmp_path: Path, role: str, fabric: str, line: str) -> None:
    """Google's guest config checker compares the interface with the name in Google's profile."""
    node = Sandbox(tmp_path, ("ip", "systemctl"), {"ip": "0 3: eth1    inet 10.0.0.4/24 scope global"})
    node.write({"etc/chrony/chrony.conf": "confdir /etc/chrony/conf.d\nmakestep 1 3\n"})
    env = {"PRIVATE_IP": "10.0.0.4", "NETWORK": "10.0.0.0/20", "HEAD_IP": "10.0.0.4", "FABRIC": fabric}
    ran = node.run("40-network", ROLE=role, **env).passed()
    assert "systemctl restart --no-block chrony.service" in ran.commands
    files = [(tmp_path / "etc/chrony" / name).read_text() for name in ("chrony.conf", "conf.d/trainyard.conf")]
    assert re.findall("^makestep .*", "".join(files), re.M) == ["makestep 1 -1"]
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
    system(tmp_path, *BOTH)
    assert apt_list(tmp_path, "Allowed-Origins") == []
    assert apt_list(tmp_path, "Origins-Pattern") == [
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
    system(tmp_path, *BOTH)
    expressions = apt_list(tmp_path, "Package-Blacklist")
    # unattended-upgrades 2.12 also converts such expressions to apt pins (python_regex_is_posix).
    assert all(re.fullmatch(r"[-a-zA-Z0-9^$+.:]*", expression) for expression in expressions)
    held = {
        name for name in (_HELD + _UPDATED).split() if any(re.match(expression, name) for expression in expressions)
    }
    assert held == set(_HELD.split())


@pytest.mark.parametrize("existing", ["", "yes"])
def test_existing_hosts_get_no_automatic_updates(tmp_path: Path, existing: str) -> None:
    ran, ours, timer = system(tmp_path, *BOTH, TEST_LEDGER=existing), not existing, "trainyard-updates.timer"
    assert (tmp_path / f"etc/systemd/system/timers.target.wants/{timer}").is_symlink() is ours
    assert (f"systemctl start --no-block {timer}" in ran.commands) is ours
    assert (tmp_path / "etc/apt/apt.conf.d/91trainyard-updates").exists() is ours


def test_needrestart_does_not_restart_services_of_jobs(tmp_path: Path) -> None:
    (tmp_path / "etc/needrestart").mkdir(parents=True)
    system(tmp_path)
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
    system(tmp_path, SCHEDULER=scheduler)
    assert Sandbox(tmp_path).read("etc/environment") == lines


@pytest.mark.skipif(sshd_binary() is None, reason="sshd is not installed")
def test_sshd_reads_the_key_file_for_the_job_user_only(tmp_path: Path) -> None:
    system(tmp_path, "10-base")
    make_key(tmp_path / "host")
    config = tmp_path / "sshd_config"
    # The owner's settings follow the line that includes the cluster's settings.
    config.write_text(
        f"HostKey {tmp_path}/host\nInclude {tmp_path}/etc/ssh/sshd_config.d/*.conf\n"
        "AuthorizedKeysFile /owner/%u\nX11Forwarding yes\n"
    )
    ours = f"authorizedkeysfile {tmp_path}/etc/trainyard/authorized_keys/%u .ssh/authorized_keys"
    assert ours in settings(config, "trainer")
    assert "authorizedkeysfile /owner/%u" in settings(config, "ops")
    for user in ("trainer", "ops"):
        # A Match block would end the main file's global section if it extended beyond the included file.
        assert "x11forwarding yes" in settings(config, user)


def settings(config: Path, user: str) -> list[str]:
    """Return the sshd settings for a login, as printed by `sshd -T`."""
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd refuses to run without it
    command = [str(sshd_binary()), "-T", "-f", str(config), "-C", f"user={user},host=head,addr=10.0.0.4"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize(
    ("managed", "finished", "code"),
    [("true", "null", 1), ("localhost", "null", 1), ("true", "1795246299.7", 0), ("false", "null", 0)],
)
def test_etc_hosts_is_written_after_cloud_init(tmp_path: Path, managed: str, finished: str, code: int) -> None:
    node, status = Sandbox(tmp_path), f'{{"v1": {{"init": {{"finished": {finished}}}}}}}'
    node.write(dict.fromkeys(("hosts", "known_hosts", "complete", "etc/hosts"), ""))
    node.write({"etc/cloud/cloud.cfg.d/01.cfg": f"manage_etc_hosts: {managed}\n"})
    node.write({"run/cloud-init/status.json": status})
    assert node.run("60-munge", SCHEDULER="none", ROLE="worker", TEST_HANDOVER=str(tmp_path)).code == code


@pytest.mark.parametrize(("existing", "code"), [("", 1), ("1", 0)])
def test_cloud_init_errors_are_ignored_on_existing_hosts(tmp_path: Path, existing: str, code: int) -> None:
    node, errors = Sandbox(tmp_path), '{"v1": {"errors": ["of the owner"]}}'
    node.write({"run/cloud-init/.instance-id": "", "run/cloud-init/result.json": errors})
    (tmp_path / "shared/jobs").mkdir(parents=True)
    env = {"ROLE": "head", "SCHEDULER": "none", "NODE": "a", "TEST_LEDGER": existing}
    assert node.run("90-health", **env).code == code


GIVEN = "127.0.0.1 localhost\n127.0.1.1 mine\n"


def call(name: str, script: str) -> str:
    """Run a bash script that can call a function from stage.sh. Return the script's output."""
    return bash(f"is_existing_host() {{ false; }}\nchanged=0\n{function(STAGES.parent / 'stage.sh', name)}\n{script}")


def put(file: Path, lines: str) -> int:
    return int(call("put_block", f"put_block {file} <<<'{lines}'; echo $changed"))


def test_block_is_added_and_replaced_without_other_changes(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    assert put(file, "x") == 1
    assert file.read_text() == "# trainyard\nx\n# end of trainyard\n"
    file.write_text(GIVEN.rstrip("\n"))
    assert put(file, "10.0.0.4 a") == 1
    assert file.read_text() == f"{GIVEN}# trainyard\n10.0.0.4 a\n# end of trainyard\n"
    file.write_text(file.read_text() + "192.0.2.1 later\n")
    assert put(file, "10.0.0.5 b") == 1
    assert file.read_text() == f"{GIVEN}192.0.2.1 later\n# trainyard\n10.0.0.5 b\n# end of trainyard\n"
    assert put(file, "10.0.0.5 b") == 0
    assert list(tmp_path.iterdir()) == [file]


TORN = (
    f"# trainyard\n10.0.0.4 a\n{GIVEN}",
    f"{GIVEN}10.0.0.4 a\n# end of trainyard\n",
    f"# trainyard\n10.0.0.4 a\n{GIVEN}# trainyard\n10.0.0.5 b\n# end of trainyard\n",
)


@pytest.mark.parametrize("torn", TORN)
def test_missing_marker_of_a_block_deletes_no_line(torn: str, tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text(torn)
    assert call("put_block", f"fail() {{ echo \"$*\"; exit; }}\nput_block {file} <<<'10.0.0.6 c'").startswith(
        f"{file}: '# trainyard' and '# end of trainyard' must enclose the cluster's lines"
    )
    assert file.read_text() == torn
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("hostname", "line"),
    [("node1", ""), ("node1.example.org", ""), ("odd.example.org", "10.0.0.7 odd.example.org odd\n")],
)
def test_own_host_line_has_the_hostname_if_it_differs(hostname: str, line: str) -> None:
    names = f"HOSTNAME={hostname} TRAINYARD_NODE=node1 TRAINYARD_PRIVATE_IP=10.0.0.7"
    assert call("own_host_line", f"{names}\nown_host_line") == line


def test_mariadb_has_a_folder_for_its_socket(tmp_path: Path) -> None:
    (tmp_path / "etc/trainyard").mkdir(parents=True)
    Sandbox(tmp_path, ("systemctl",)).run("55-accounting", ROLE="head").passed()
    lines = (tmp_path / "etc/systemd/system/mariadb.service.d/trainyard.conf").read_text().splitlines()
    # The first line removes MariaDB 10.6's hook that creates the folder.
    assert {"ExecStartPre=", "RuntimeDirectory=mysqld", "RuntimeDirectoryMode=0755"} <= set(lines)


@pytest.mark.parametrize(("stored", "is_set"), [(None, True), ("former", True), ("new", False)])
def test_a_new_database_password_is_set_first(tmp_path: Path, stored: str | None, is_set: bool) -> None:
    node = Sandbox(tmp_path)
    node.write({"slurm/slurmdbd.conf": "DbdHost=localhost\nStoragePass=new\n"})
    if stored is not None:
        node.write({"etc/slurm/slurmdbd.conf": f"DbdHost=localhost\nStoragePass={stored}\n"})
    functions = "".join(f"{function(STAGES / '70-slurm', name)}\n" for name in ("set_password", "start_accounting"))
    # The stage writes the file only after the database has the password.
    bash(
        f"handover={tmp_path}\nmariadb() {{ echo $* >{tmp_path}/arguments; cat >{tmp_path}/sql; }}\n"
        f"put_file() {{ exit 0; }}\n{functions.replace('/etc/slurm', f'{tmp_path}/etc/slurm')}start_accounting"
    )
    assert (node.read("sql") is not None) is is_set
    if is_set:
        assert "ALTER USER 'slurm'@'localhost' IDENTIFIED BY 'new';" in str(node.read("sql"))
        assert node.read("arguments") == "--skip-ssl\n"


def test_no_service_stops_with_munged() -> None:
    files = [file for file in (project.ROOT / "cloud-init/files/etc/systemd/system").rglob("*") if file.is_file()]
    stops = re.compile(r"^(Requires|Requisite|BindsTo|PartOf)=.*\bmunge\b", re.M)
    assert len(files) > 10
    assert [file.name for file in files if stops.search(file.read_text())] == []


@pytest.mark.parametrize("has_job", [True, False])
def test_slurmd_forgets_jobs_that_ran_before_a_reboot(tmp_path: Path, has_job: bool) -> None:
    unit = (project.ROOT / "cloud-init/files/etc/systemd/system/slurmd.service.d/trainyard.conf").read_text()
    (command,) = re.findall(r'^ExecStartPre=/bin/sh -c "(.*)"$', unit, re.M)
    (spool,) = re.findall("(?m)^SlurmdSpoolDir=(.*)$", (project.ROOT / "tests/golden/gcp-a2/slurm.conf").read_text())
    state = tmp_path / "cred_state"
    state.touch()
    (tmp_path / "pgrep").write_text(f"#!/bin/sh\nexit {int(not has_job)}\n")
    (tmp_path / "pgrep").chmod(0o755)
    assert f"{spool}/cred_state" in command
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", command.replace(spool, str(tmp_path))], env=environment, check=True, timeout=30)
    assert state.exists() is has_job


def test_a_file_is_replaced_and_never_empty(tmp_path: Path) -> None:
    """A fake `mv` shows both files before it replaces the old one."""
    file = tmp_path / "etc" / "keys"
    (tmp_path / "mv").write_text('#!/bin/sh\ncat "$2" "$3" >"$SHOWN"\nexec /bin/mv "$@"\n')
    (tmp_path / "mv").chmod(0o755)
    put = f"remember() {{ :; }}\nchanged=0\n{function(STAGES.parent / 'stage.sh', 'put_file')}\n"
    put += f'for text in "$@"; do put_file {file} 0640 "$(id -un):$(id -gn)" <<<"$text"; done; echo $changed'
    shown = tmp_path / "shown"
    assert bash(put, "old", "old", "new", PATH=f"{tmp_path}:{os.environ['PATH']}", SHOWN=str(shown)) == "2\n"
    assert shown.read_text() == "new\nold\n"
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("new\n", 0o640)
    assert [path.name for path in file.parent.iterdir()] == ["keys"]


def test_a_new_file_of_root_needs_no_process(tmp_path: Path) -> None:
    file = tmp_path / "new.conf"
    put = f"remember() {{ :; }}\nchanged=0\numask 022\n{function(STAGES.parent / 'stage.sh', 'put_file')}\n"
    put += f"for text in a a; do put_file {file} 0644 root:root <<<$text; done; echo $changed"
    assert bash(f"PATH={tmp_path}\n{put}") == "1\n"
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("a\n", 0o644)


TORCHRUN = STAGES.parent / "torchrun"
_DISTRIBUTED = """
import os

class TCPStore:
    def __init__(self, host, port=0, is_master=False, wait_for_workers=True, use_libuv=True):
        if use_libuv and not {built}:
            raise RuntimeError("use_libuv was requested but PyTorch was built without libuv support")
"""
_RENDEZVOUS = """
from collections import namedtuple

RendezvousInfo = namedtuple("RendezvousInfo", "store rank world_size ranks")

class RendezvousStoreInfo:
    @staticmethod
    def build(rank, store, local_addr):
        return f"own store at {local_addr}"
"""
_STATIC = """
from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousInfo

class StaticTCPRendezvous:
    master_addr, use_agent_store = "head", True

    def next_rendezvous(self):
        return RendezvousInfo(TCPStore(self.master_addr), 0, 2, "agent's store")
"""
_API = """
def _get_addr_and_port(parameters):
    return ("head", 29500)
"""
_RUN = """
import os, sys
from torch.distributed.elastic.rendezvous import static_tcp_rendezvous
from torch.distributed.launcher import api

def main():
    handler = static_tcp_rendezvous.StaticTCPRendezvous()
    print(sys.argv[1:], handler.use_agent_store, handler.next_rendezvous().ranks)
    names = ("USE_LIBUV", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE")
    print(api._get_addr_and_port(None)[1], *map(os.environ.get, names))

if __name__ == "__main__":
    main()
"""
"""Fake versions of the parts of torch 2.6 (torch/distributed) that the node's torchrun replaces."""


def torchrun(folder: Path, *command: str, built: bool, **environment: str) -> str:
    """Run a command with the fake torch and return its output. `built`: whether torch includes libuv."""
    files = {
        "__init__": "",
        "distributed/__init__": _DISTRIBUTED.format(built=built),
        "distributed/run": _RUN,
        "distributed/launcher/__init__": "",
        "distributed/launcher/api": _API,
        "distributed/elastic/__init__": "",
        "distributed/elastic/rendezvous/__init__": _RENDEZVOUS,
        "distributed/elastic/rendezvous/static_tcp_rendezvous": _STATIC,
    }
    for name, text in files.items():
        file = folder / "torch" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    environment |= {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder)}
    arguments = [*command, "--nnodes=2", "a b"]
    return subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("built", "output"),
    [(True, "True agent's store\n29500 None None\n"), (False, "False own store at head\nNone 0 1\n")],
)
def test_stores_use_no_libuv_only_if_torch_lacks_it(tmp_path: Path, built: bool, output: str) -> None:
    assert torchrun(tmp_path, str(TORCHRUN), built=built) == f"['--nnodes=2', 'a b'] {output}"


@pytest.mark.parametrize("built", [True, False])
def test_torchrun_as_a_module_uses_the_same_stores(tmp_path: Path, built: bool) -> None:
    """The .pth file is in the user's packages folder of a Python outside any virtual environment."""
    packages = tmp_path / "usr/lib/python3/dist-packages"
    (packages / "torch").mkdir(parents=True)
    system(tmp_path)
    hook = tmp_path / "usr/local/lib/trainyard/torchrun"
    hook.parent.mkdir(parents=True)
    hook.symlink_to(TORCHRUN)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    user = tmp_path / "user/lib" / version / "site-packages"
    user.mkdir(parents=True)
    (file,) = packages.glob("*.pth")
    file.rename(user / file.name)
    command = (f"{sys.base_prefix}/bin/{version}", "-m", "torch.distributed.run")
    as_module = torchrun(tmp_path / "fake", *command, built=built, PYTHONUSERBASE=str(tmp_path / "user"))
    assert as_module == torchrun(tmp_path / "fake", str(TORCHRUN), built=built)
