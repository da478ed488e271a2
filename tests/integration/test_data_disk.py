"""Attacks on shared files, and the replacement of a head that has a data disk.

The tests share the cluster with the other integration tests. The attacker is root on a worker.
"""

from __future__ import annotations

import re
import shlex

import pytest

from tests.integration.project import FIRST, HEAD, SECOND, Project, wait_until

pytestmark = pytest.mark.integration

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


def test_other_addresses_of_the_network_cannot_mount(cluster: Project) -> None:
    # A network namespace with a different address simulates another machine in the network.
    neighbour = """
      ip netns add neighbour; trap 'ip netns del neighbour' EXIT
      ip link add nb0 link clu0 netns neighbour type macvlan mode bridge
      ip -n neighbour address add 10.77.15.250/20 dev nb0; ip -n neighbour link set nb0 up
      mkdir -p /run/neighbour
      # `ip netns exec` creates a mount namespace, which ends with the command.
      ip netns exec neighbour bash -c "
        mount -t nfs4 -o vers=4.2,soft,timeo=50,retry=0 10.77.0.4:/shared /run/neighbour &&
        ls -d /run/neighbour/jobs" 2>&1"""
    assert "/run/neighbour/jobs" not in cluster.as_root(FIRST, neighbour, check=False)
    # The same mount succeeds after the head exports the folder to this address. Therefore, the export list blocked the
    # first attempt.
    cluster.as_root(HEAD, "exportfs -o rw,sync,no_subtree_check,fsid=2 10.77.15.250:/shared")
    try:
        assert "/run/neighbour/jobs" in cluster.as_root(FIRST, neighbour)
    finally:
        cluster.as_root(HEAD, "exportfs -ra")
    assert "/run/neighbour/jobs" not in cluster.as_root(FIRST, neighbour, check=False)
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
    before = cluster.boot_id(HEAD)
    parents = "trainyard:index:Cluster$trainyard:index:LocalPlatform"
    cluster.replace(f"{parents}$pulumi-python:dynamic/local:Vm::it-local-{HEAD}", timeout=900)
    assert cluster.boot_id(HEAD) not in {"", before}
    assert f"{done}|COMPLETED" in cluster.on(HEAD, sacct)
    assert cluster.on(HEAD, f"squeue -h -j {held} -o '%T %r'").split() == ["PENDING", "JobHeldUser"]
    assert cluster.yard("ssh", "--", "cat /shared/kept ~/kept").out.split()[-2:] == ["kept", "kept"]
    cluster.on(HEAD, f"sudo scontrol release {held}")
    wait_until("the held job's end", 180, lambda: "COMPLETED" in cluster.on(HEAD, f"sacct -n -X -P -o state -j {held}"))
    assert cluster.states() == {FIRST: "idle", SECOND: "idle"}
