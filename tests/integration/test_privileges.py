"""Attacks by root on a worker: through Slurm, on shared files, and on the data disk, which a new head then uses.

Root has the munge key and can act as every user, for example as SlurmUser. Each attack through Slurm that is refused
succeeds with the configuration of commit 4a35eb0: the same commands were run with Slurm 24.11.5 of Debian 13 and with
that commit's slurm.conf, prolog and units (2026-11-24).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cloud_init.test_confinement import CONFINED, EXPOSURE, writable
from tests.integration.project import AS_TRAINER, FIRST, HEAD, SECOND, Project, wait_until
from tests.integration.survivors import finish, job_file

pytestmark = pytest.mark.integration

AS_SLURM = "sudo setpriv --reuid=slurm --regid=slurm --clear-groups"
PROOF = "/var/lib/slurm/slurmctld/attacked"
"""A file that slurmctld may write."""
PROGRAM = f"#!/bin/sh\\nid >{PROOF}\\n"
WORDS = ("open ", "/run/neighbour/")
"""How the lines begin that a machine outside the cluster prints about what it reaches."""
ACCOUNTING = "timeout 5 bash -c '</dev/tcp/10.77.0.4/6819' && echo open"


def attacked(cluster: Project) -> bool:
    return "yes" in cluster.on(HEAD, f"sudo test -e {PROOF} && echo yes", check=False)


@pytest.fixture(scope="module")
def program(cluster: Project) -> str:
    """A program in the shared folder. Root on a worker can write it, but not with uid 0."""
    cluster.on(FIRST, f"{AS_SLURM} sh -c 'printf \"{PROGRAM}\" >/shared/attack; chmod 755 /shared/attack'")
    return "/shared/attack"


@pytest.fixture
def clean_queue(cluster: Project) -> Iterator[None]:
    """After the test, end all jobs and return the second node to service. Slurm drains a node whose prolog fails."""
    yield
    cluster.on(HEAD, "for user in ops root trainer; do sudo scancel --user=$user; done")
    wait_until("the jobs to end", 60, lambda: not cluster.on(HEAD, "squeue -h").strip())
    cluster.on(HEAD, f"sudo scontrol update nodename={SECOND} state=resume", check=False)
    wait_until("both nodes", 90, lambda: cluster.states() == {FIRST: "idle", SECOND: "idle"})


@pytest.fixture
def open_partition(cluster: Project, clean_queue: None) -> Iterator[None]:
    """A partition that SlurmUser has opened for all users, from a worker."""
    update = f"{AS_SLURM} scontrol update partition=gpu"
    cluster.on(FIRST, f"{update} AllowGroups=ALL DisableRootJobs=NO")
    yield
    cluster.on(FIRST, f"{update} AllowGroups=trainer DisableRootJobs=YES")


def wait_until_drained(cluster: Project) -> None:
    """Wait until Slurm has drained the second node, because its prolog has failed."""
    wait_until("the node to drain", 30, lambda: cluster.states()[SECOND].startswith("drained"))


def test_slurmctld_refuses_triggers(cluster: Project, program: str) -> None:
    output = cluster.on(
        FIRST, f"{AS_SLURM} strigger --set --drained --node={SECOND} --program={program} 2>&1", check=False
    )
    assert "Requested operation is presently disabled" in output


def test_slurmctld_runs_no_mail_program(cluster: Project, program: str) -> None:
    cluster.on(
        HEAD, f"sudo install -m 755 {program} /usr/local/bin/attack && sudo ln -sf /usr/local/bin/attack /usr/bin/mail"
    )
    mail = "--mail-type=END --mail-user=somebody --output=/dev/null"
    cluster.on(HEAD, f"{AS_TRAINER} timeout 100 sbatch --wait {mail} --wrap true")
    log = "sudo journalctl -u slurmctld --no-pager -o cat"
    wait_until("slurmctld to send mail", 60, lambda: "MailProg returned error" in cluster.on(HEAD, log))
    # Outside of slurmctld's restrictions, slurm can run the program.
    assert not attacked(cluster)
    cluster.on(HEAD, f"{AS_SLURM} /usr/bin/mail")
    assert attacked(cluster)
    cluster.on(HEAD, f"sudo rm {PROOF}")
    cluster.on(HEAD, "sudo rm /usr/bin/mail /usr/local/bin/attack")


def test_slurmdbd_accepts_no_connection_from_workers(cluster: Project) -> None:
    assert "open" not in cluster.on(FIRST, ACCOUNTING, check=False)
    assert "open" in cluster.on(HEAD, ACCOUNTING.replace("10.77.0.4", "127.0.0.1"))


def test_slurmdbd_runs_no_archive_script(cluster: Project, program: str) -> None:
    """Root on a worker can log in to the head as the job user, and bring the munge key."""
    dump = f"{AS_SLURM} timeout 60 sacctmgr -i archive dump Script={program} PurgeJobAfter=1months 2>&1"
    assert "Problem accessing file" in cluster.on(HEAD, dump, check=False)
    assert not attacked(cluster)
    assert "slurmdbd is active" in cluster.on(HEAD, "echo slurmdbd is $(systemctl is-active slurmdbd)")


@pytest.mark.parametrize("unit", ["slurmctld", "slurmdbd", "trainyard-repair"])
def test_services_on_the_head_run_and_move_nothing(cluster: Project, unit: str) -> None:
    pid = f"$(systemctl show --value -p MainPID {unit})"
    shell = cluster.on(HEAD, f"sudo nsenter --mount --target {pid} /bin/sh -c 'echo ran' 2>&1", check=False)
    assert "Permission denied" in shell
    facts = cluster.on(HEAD, f"sudo cat /proc/{pid}/status /proc/{pid}/mounts").splitlines()
    assert {"NoNewPrivs:\t1", "CapBnd:\t0000000000000000", "Seccomp:\t2"} <= set(facts)
    mounts = {line.split()[1]: set(line.split()[3].split(",")) for line in facts if line.endswith(" 0 0")}
    assert {"ro", "noexec", "nosuid"} <= mounts["/"] & mounts["/run"]
    assert {"ro", "nosuid"} <= mounts["/usr/lib/x86_64-linux-gnu"]
    # The data disk contains the folder of slurmctld's state, which is a link.
    own = writable(unit) if unit != "slurmctld" else {"/run/slurmctld", "/srv/trainyard/state/slurmctld"}
    assert all({"rw", "noexec"} <= mounts[folder] for folder in own | {"/tmp", "/var/tmp"})  # noqa: S108


def test_slurm_cannot_move_the_state(cluster: Project) -> None:
    move = f"{AS_SLURM} mv -T /var/lib/slurm/slurmctld /var/lib/slurm/x 2>&1"
    assert "Permission denied" in cluster.on(HEAD, move, check=False)


def test_exposure_of_the_services_on_the_head(cluster: Project) -> None:
    units = " ".join(f"{unit}.service" for unit in CONFINED)
    rated = cluster.on(HEAD, f"sudo systemd-analyze security --no-pager {units} | grep exposure")
    found = {unit: float(level) for unit, level in re.findall(r"level for (\S+)\.service: ([\d.]+)", rated)}
    assert sorted(found) == CONFINED
    assert {unit: level for unit, level in found.items() if level > EXPOSURE} == {}


def test_reloaded_daemons_continue(cluster: Project) -> None:
    cluster.on(HEAD, "sudo systemctl reload slurmctld && sudo systemctl reload slurmdbd")
    wait_until("slurmctld", 60, lambda: "is UP" in cluster.on(HEAD, "scontrol ping", check=False))
    cluster.on(HEAD, "sudo scontrol reconfigure")


@pytest.mark.parametrize("user", ["ops", "nobody"])
def test_other_users_cannot_run_jobs(cluster: Project, user: str) -> None:
    as_user = f"sudo setpriv --reuid={user} --regid=$(id -g {user}) --clear-groups"
    job = f"cd /; {as_user} timeout 60 srun --immediate=5 --nodelist={SECOND} id 2>&1"
    output = cluster.on(FIRST, job, check=False)
    assert "Requested partition configuration not available now" in output
    assert "uid=" not in output


@pytest.mark.parametrize(
    "job",
    [
        "sudo setpriv --reuid=ops --regid=ops --clear-groups timeout 60 srun --immediate=20 sudo -n id",
        "sudo timeout 60 srun --immediate=20 id",
        "sudo timeout 20 sbatch --wait --uid=2000 --gid=disk --output=/shared/groups --wrap id; cat /shared/groups",
    ],
    ids=["admin", "root", "group"],
)
@pytest.mark.usefixtures("open_partition")
def test_other_nodes_refuse_foreign_users_and_groups(cluster: Project, job: str) -> None:
    command = job.replace("srun ", f"srun --nodelist={SECOND} ").replace("sbatch ", f"sbatch --nodelist={SECOND} ")
    output = cluster.on(FIRST, f"cd /; {command} 2>&1", check=False)
    assert "uid=" not in output
    wait_until_drained(cluster)


@pytest.mark.full
@pytest.mark.usefixtures("open_partition")
def test_no_task_starts_when_the_prolog_fails_at_the_end_of_a_second(cluster: Project) -> None:
    """If the prolog failed at any time, 2 of 30 attempts started their tasks (2026-11-28)."""
    outputs = []
    for phase in range(10):
        wait = f"python3 -c 'import time; time.sleep((0.{phase} - time.time()) % 1)'"
        job = f"sudo timeout 60 srun --nodelist={SECOND} --immediate=20 id 2>&1"
        outputs.append(cluster.on(FIRST, f"cd /; {wait}; {job}", check=False))
        wait_until_drained(cluster)
        cluster.on(HEAD, f"sudo scontrol update nodename={SECOND} state=resume")
        wait_until("both nodes", 90, lambda: cluster.states() == {FIRST: "idle", SECOND: "idle"})
    assert [output for output in outputs if "uid=" in output] == []


@pytest.mark.usefixtures("clean_queue")
def test_root_on_a_worker_can_become_root_on_others(cluster: Project) -> None:
    """A limit of Slurm that SECURITY.md states. If Slurm refuses one of these commands, SECURITY.md must change."""
    # Each srun chooses the same job id, because the id depends on its process id. The prolog refuses this id only once.
    job = f"cd /; sudo unshare --pid --fork timeout 60 srun --no-allocate --nodelist={SECOND} id 2>&1"
    refused, started = (cluster.on(FIRST, job, check=False) for _ in range(2))
    assert "Job prolog failed" in refused
    assert "uid=" not in refused
    assert "uid=0(root)" in started
    # Without a job, and on a drained node.
    cluster.on(FIRST, f"cd /; sudo timeout 60 sbcast --no-allocation --nodelist={SECOND} /etc/hostname /root/proof")
    assert cluster.on(SECOND, "sudo stat -c %U /root/proof; sudo cat /root/proof; sudo rm /root/proof").split() == [
        "root",
        FIRST,
    ]


_WAITING = """
import os
import time
from pathlib import Path

place = Path(os.environ["RUN_DIR"])
(place / f"begun-{os.environ['RANK']}").touch()
while not (place / "go").exists():
    time.sleep(0.5)
print("rank", os.environ["RANK"], "has waited", flush=True)
"""


def connects(cluster: Project, node: str, user: str, port: int) -> str:
    """Return "open", "refused" or "silent": the result of a connection from the node to the job's port on FIRST."""
    line = f"timeout 5 bash -c ': <>/dev/tcp/{FIRST}/{port}' 2>&1; echo code $?"
    found = cluster.on(node, f"sudo setpriv --reuid={user} --regid=65534 --clear-groups bash -c {shlex.quote(line)}")
    if "refused" in found:
        return "refused"
    return {"0": "open", "124": "silent"}.get(found.split()[-1], found)


@pytest.mark.full
def test_only_the_job_user_reaches_an_elastic_rendezvous(cluster: Project, tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(_WAITING)
    job = cluster.submit(job_file(tmp_path, "waiting", launcher="torchrun-elastic", nodes=2, workload="waiting.py"))
    folder = job["run_dir"]
    begun = f"sudo -u trainer sh -c 'ls {folder}/begun-* | wc -l'"
    wait_until("both ranks", 600, lambda: cluster.on(HEAD, begun, check=False).strip() == "2")
    port = 20000 + int(job["id"]) * 10 % 12000
    assert f":{port} " in cluster.on(FIRST, "sudo ss -Hltn")
    assert connects(cluster, SECOND, "65534", port) == "refused"
    assert connects(cluster, FIRST, "65534", port) == "silent"
    assert connects(cluster, SECOND, "2000", port) == connects(cluster, FIRST, "2000", port) == "open"
    assert connects(cluster, HEAD, "0", port) == "open"
    cluster.on(HEAD, f"sudo -u trainer touch {folder}/go")
    assert "rank 0 has waited" in finish(cluster, job)


# Reads a file on the NFS server with a forged file handle: the handle of the folder $1, with inode $2 and generation
# $3. Layout: linux, fs/nfs/export.c (client) and fs/nfsd/nfsfh.h (server). The test reads the generation number on the
# head. An attacker who sends RPCs does not need this number, because the root folder in ext4 has inode 2 and generation
# 0.
MADE_UP_HANDLE = """
import ctypes, os, struct, sys
libc, (folder, inode, generation) = ctypes.CDLL(None, use_errno=True), sys.argv[1:]
buffer = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
if libc.name_to_handle_at(-100, folder.encode(), buffer, ctypes.byref(ctypes.c_int()), 0):
    sys.exit(os.strerror(ctypes.get_errno()))
struct.pack_into("III", buffer, 8, 0, int(inode), 0o100000)
struct.pack_into("B", buffer, 8 + 14 + 3, 1)
struct.pack_into("II", buffer, 8 + 14 + 8, int(inode), int(generation))
file = libc.open_by_handle_at(os.open(folder, os.O_RDONLY), buffer, os.O_RDONLY)
try:
    print("opened", len(os.read(file, 4))) if file >= 0 else print(os.strerror(ctypes.get_errno()))
except OSError as error:
    print(error.strerror)
"""

# Runs the storage stage for the disk $1 with the content $2 in the provisioner's data-disk file. The node's
# configuration files are not changed.
STAGE = r"""
set -e
sed -e 's/^TRAINYARD_ROLE=.*/TRAINYARD_ROLE=head/' -e "s|^TRAINYARD_SHARED_DISK=.*|TRAINYARD_SHARED_DISK=$1|" \
  /etc/trainyard/node.env >/run/trainyard/other.env
mkdir -p /run/other
echo "$2" >/run/other/data-disk
unshare -m bash -c '
  mount --bind /run/trainyard/other.env /etc/trainyard/node.env
  # The library is a link into this folder.
  mkdir -p /run/other/bundles
  mount --bind /var/lib/trainyard/bundles /run/other/bundles
  mount --rbind /run/other /var/lib/trainyard
  mount -t tmpfs none /etc/systemd/system
  lib=/usr/local/lib/trainyard
  bash -c "source $lib/stage.sh; source $lib/stages/50-storage"' 2>&1 || echo "stage ended with $?"
"""


@pytest.mark.parametrize("owner", ["root", "ops"])
def test_set_user_id_file_has_no_effect(cluster: Project, owner: str) -> None:
    # Only the head can create a file owned by root, because NFS squashes root on a worker.
    file, maker = f"/shared/as-{owner}", HEAD if owner == "root" else FIRST
    cluster.on(maker, f"sudo -u {owner} sh -c 'cp /usr/bin/id {file} && chmod 4755 {file}'")
    try:
        assert f"{owner} 4755" in cluster.on(SECOND, f"stat -c '%U %a' {file}")
        effective = {node: cluster.on(node, f"sudo -u trainer {file} -u").split()[-1] for node in (HEAD, FIRST, SECOND)}
        assert effective == dict.fromkeys((HEAD, FIRST, SECOND), "2000")
        # Without the mount flags, the set-user-ID bit has an effect.
        cluster.on(SECOND, "sudo mount -o remount,bind,suid,dev /shared")
        attack = cluster.on(SECOND, f"sudo -u trainer {file} -u").split()[-1]
        cluster.on(SECOND, "sudo mount -o remount,bind,nosuid,nodev /shared")
        assert attack == cluster.on(SECOND, f"id -u {owner}").split()[-1]
    finally:
        cluster.on(HEAD, f"sudo rm {file}")


def test_other_machines_of_the_network_reach_only_ssh(cluster: Project) -> None:
    # A network namespace with a different address simulates another machine in the network.
    neighbour = """
      ip netns add neighbour; trap 'ip netns del neighbour' EXIT
      ip link add nb0 link clu0 netns neighbour type macvlan mode bridge
      ip -n neighbour address add 10.77.15.250/20 dev nb0; ip -n neighbour link set nb0 up
      mkdir -p /run/neighbour
      # `ip netns exec` creates a mount namespace, which ends with the command.
      ip netns exec neighbour bash -c "
        for port in 22 2049 6817; do timeout 5 bash -c ': <>/dev/tcp/10.77.0.4/'\\$port && echo open \\$port; done
        mount -t nfs4 -o vers=4.2,soft,timeo=50,retry=0 10.77.0.4:/shared /run/neighbour &&
        ls -d /run/neighbour/jobs" 2>&1"""

    def reached() -> set[str]:
        return {line for line in cluster.as_root(FIRST, neighbour, check=False).splitlines() if line.startswith(WORDS)}

    assert reached() == {"open 22"}
    # As soon as the head admits the address, its daemons can be reached, so the rules blocked the first attempt. The
    # list of exports still blocks the mount.
    cluster.as_root(HEAD, "nft add element inet trainyard_ports nodes { 10.77.15.250 }")
    daemons = {"open 22", "open 2049", "open 6817"}
    try:
        assert reached() == daemons
        cluster.as_root(HEAD, "exportfs -o rw,sync,no_subtree_check,fsid=2 10.77.15.250:/shared")
        assert reached() == daemons | {"/run/neighbour/jobs"}
        cluster.as_root(HEAD, "exportfs -ra")
        assert reached() == daemons
    finally:
        cluster.as_root(HEAD, "exportfs -ra; systemctl reload trainyard-ports.service")
    assert reached() == {"open 22"}
    assert "jobs" in cluster.on(FIRST, "ls /shared"), "exportfs -ra broke the mount on a worker"


def made_up(cluster: Project, user: str, folder: str, victim: str) -> str:
    """As `user` on a worker, open the file `victim` on the head with a forged handle, and return the result."""
    seen = cluster.as_root(HEAD, f"stat -c %i {victim}; lsattr -v {victim}").split()
    forged = f"setpriv --reuid={user} --regid={user} --clear-groups --inh-caps=+dac_read_search"
    program = f"python3 -c {shlex.quote(MADE_UP_HANDLE)} {folder} {seen[0]} {seen[1]}"
    return cluster.as_root(FIRST, f"{forged} --ambient-caps=+dac_read_search {program} 2>&1").splitlines()[-1]


def test_forged_handles_cannot_open_the_state_of_slurm(cluster: Project) -> None:
    # Root on a worker can use any uid, so a forged handle can open other files on the data disk as their owner.
    cluster.as_root(HEAD, "install -m 0600 -o slurm /etc/hostname /srv/trainyard/beside")
    assert made_up(cluster, "slurm", "/shared/jobs", "/srv/trainyard/beside") == "opened 4"
    assert made_up(cluster, "slurm", "/shared/jobs", "/srv/trainyard/state.img") == "Permission denied"
    cluster.as_root(HEAD, "rm /srv/trainyard/beside")


@pytest.mark.parametrize(
    ("check", "answer"), [("no_subtree_check", "opened 4"), ("subtree_check", "Stale file handle")]
)
def test_subtree_check_rejects_forged_handles(cluster: Project, check: str, answer: str) -> None:
    # An existing host exports folders on its root disk, with subtree_check.
    address = cluster.on(FIRST, "sed -n s/^TRAINYARD_PRIVATE_IP=//p /etc/trainyard/node.env").split()[-1]
    folder = "/var/tmp/exported"  # noqa: S108
    cluster.as_root(
        HEAD, f"mkdir -p {folder}/sub; exportfs -o rw,sync,{check},root_squash,fsid=7 {address}/32:{folder}"
    )
    cluster.as_root(FIRST, f"mkdir -p /run/exported; mount -t nfs4 -o vers=4.2 10.77.0.4:{folder} /run/exported")
    try:
        assert made_up(cluster, "munge", "/run/exported/sub", "/etc/munge/munge.key").startswith(answer)
    finally:
        cluster.as_root(FIRST, "umount /run/exported")
        cluster.as_root(HEAD, f"exportfs -u {address}/32:{folder}; rm -r {folder}")


def test_disk_with_read_errors_is_not_formatted(cluster: Project) -> None:
    # Reads from a loop device whose file is truncated fail with EIO. A write would extend the file again.
    broken = f"""
      modprobe loop; truncate -s 64M /var/tmp/disk; mkfs.ext4 -q /var/tmp/disk; disk=$(losetup --show -f /var/tmp/disk)
      truncate -s 0 /var/tmp/disk; set -- "$disk" new
      {STAGE}
      losetup -d "$disk"; stat -c 'bytes %s' /var/tmp/disk; rm /var/tmp/disk"""
    output = cluster.as_root(FIRST, broken)
    assert re.search(r"error: the disk /dev/loop\d+ cannot be read, so it is not formatted", output)
    assert "stage ended with 1" in output
    assert "bytes 0" in output


@pytest.mark.full
def test_new_head_keeps_queue_accounting_and_files(cluster: Project) -> None:
    cluster.yard("ssh", "--", "echo kept >/shared/kept; echo kept >~/kept")
    done = cluster.yard("ssh", "--", "sbatch --parsable --chdir=/shared --wrap=true").out.split()[-1]
    held = cluster.yard("ssh", "--", "sbatch --parsable --hold --chdir=/shared --wrap=true").out.split()[-1]
    sacct = f"sacct -n -X -P -o jobid,state -j {done}"
    wait_until("the job's end in the accounting", 120, lambda: f"{done}|COMPLETED" in cluster.on(HEAD, sacct))
    wait_until(
        "slurmctld to write its state", 60, lambda: "saved" in cluster.on(HEAD, "sleep 6; sudo sync; echo saved")
    )
    before, record = cluster.boot_id(HEAD), "cat /var/lib/trainyard/repair/machines"
    machines = cluster.on(HEAD, record)
    assert re.search(r"(?m)^\d+ head on$", machines)
    parents = "trainyard:index:Cluster$trainyard:index:LocalPlatform"
    cluster.replace(f"{parents}$pulumi-python:dynamic/local:Vm::it-local-{HEAD}", timeout=900)
    assert cluster.boot_id(HEAD) not in {"", before}
    assert f"{done}|COMPLETED" in cluster.on(HEAD, sacct)
    assert cluster.on(HEAD, f"squeue -h -j {held} -o '%T %r'").split() == ["PENDING", "JobHeldUser"]
    assert cluster.on(HEAD, record) == machines
    assert cluster.yard("ssh", "--", "cat /shared/kept ~/kept").out.split()[-2:] == ["kept", "kept"]
    cluster.on(HEAD, f"sudo scontrol release {held}")
    wait_until("the held job's end", 180, lambda: "COMPLETED" in cluster.on(HEAD, f"sacct -n -X -P -o state -j {held}"))
    assert cluster.states() == {FIRST: "idle", SECOND: "idle"}
