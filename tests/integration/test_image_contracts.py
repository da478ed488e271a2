"""Stages on a Debian machine with Azure's agent, mdadm, and files recorded from the pinned images.

The Azure and Google images cannot boot in local virtual machines. The tests therefore use recorded facts about the
builds of these images.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import yaml

from components.catalog import image_contracts, images
from components.node.user_data import AccessKeys, cloud_config
from components.plan.plan import ClusterPlan
from tests.integration.bare import BareHost, prepared

pytestmark = [pytest.mark.integration, pytest.mark.full]

AZURE = "azure-ubuntu-24.04-hpc"
KEYS = AccessKeys("ssh-ed25519 AAAAauthority authority@yard")
_INSTALL = """
export DEBIAN_FRONTEND=noninteractive
printf '#!/bin/sh\\nexit 101\\n' >/usr/sbin/policy-rc.d
chmod 0755 /usr/sbin/policy-rc.d
apt-get -q update && apt-get -q -y --no-install-recommends install {packages}
rm /usr/sbin/policy-rc.d
"""
_WAIT = """
python3 - <<'PYTHON'
from azurelinuxagent.common import conf
conf.load_conf_from_file("/etc/waagent.conf")
from azurelinuxagent.pa.provision.cloudinit import CloudInitProvisionHandler
print("thumbprint", CloudInitProvisionHandler().wait_for_ssh_host_key(max_retry=3))
PYTHON
"""
"""Runs the agent's function that waits for the host key, with a limit of 3 seconds instead of 30 minutes."""
_MAKE_KEYS = """
cat >/etc/cloud/cloud.cfg.d/99-test.cfg
cloud-init single --name ssh --frequency always
"""


@pytest.fixture(scope="module")
def node(local_plan: ClusterPlan, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareHost]:
    with prepared(local_plan, tmp_path_factory.mktemp("image"), 26100) as host:
        yield host


def test_slurm_is_installed_despite_the_images_pin(node: BareHost) -> None:
    path = "/etc/apt/preferences.d/slurm-repository-pin-990"
    archive = node.ok("sed -n 's#^deb http[s]*://\\([^/]*\\)/.*#\\1#p' /etc/apt/sources.list | head -n 1").strip()
    pin = image_contracts()[AZURE].files[path].replace("*ubuntu.com*", f"*{archive}*")
    assert archive in pin
    removed = " ".join(pattern for pattern in image_contracts()[AZURE].removed if pattern.startswith("/var/cache"))
    node.ok(f"dpkg --purge slurmd && rm -r {removed} && cat >{path} <<'PIN'\n{pin}PIN\n")
    refused = node.stage("20-apt")
    assert refused.returncode != 0
    assert "'slurmd' has no installation candidate" in refused.stdout
    assert node.stage("15-archive").returncode == 0
    installed = node.stage("20-apt")
    assert installed.returncode == 0, installed.stdout[-2000:]
    assert node.ok("dpkg-query -W -f '${db:Status-Abbrev}' slurmd").startswith("ii")


def test_azure_agent_finds_the_host_key(node: BareHost, local_plan: ClusterPlan) -> None:
    node.ok(_INSTALL.format(packages="waagent"))
    settings = image_contracts()[AZURE].files["/etc/waagent.conf"]
    node.ok(f"cat >/etc/waagent.conf <<'CONF'\n{settings}OS.SshDir=/etc/ssh\nCONF\n")

    def make_keys(plan: ClusterPlan) -> None:
        types = yaml.safe_load(cloud_config(plan, plan.head, KEYS))["ssh_genkeytypes"]
        # The host key for the test's SSH connection is kept.
        config = yaml.safe_dump({"ssh_genkeytypes": types, "ssh_deletekeys": False})
        node.ok(_MAKE_KEYS.replace("99-test.cfg", f"99-test.cfg <<'CONFIG'\n{config}CONFIG"))

    make_keys(local_plan)
    waited = node.ssh(_WAIT)
    assert "Giving up, ssh host key was not found at /etc/ssh/ssh_host_rsa_key.pub" in waited.stderr
    make_keys(replace(local_plan, image=images()[AZURE]))
    assert "thumbprint" in node.ok(_WAIT)


_DISKS = """
set -e
modprobe loop && modprobe raid0
mkdir -p /dev/disk/by-id
for index in 0 1; do
  losetup -d /dev/loop$index 2>/dev/null || true
  rm -f /var/disk$index
  truncate -s 64M /var/disk$index
  losetup /dev/loop$index /var/disk$index
  ln -sf /dev/loop$index /dev/disk/by-id/google-local-nvme-ssd-$index
done
"""
"""Creates two empty disks with the names that Google's udev rules assign to local SSDs."""
_OFF = "umount /mnt/localssd && mdadm --stop --scan"


def test_scratch_disks_survive_reboots_but_not_stops(node: BareHost) -> None:
    node.ok(_INSTALL.format(packages="e2fsprogs") + _DISKS)
    first = node.stage("43-scratch")
    assert first.returncode == 0, first.stdout[-2000:]
    options = node.ok("findmnt -n -o OPTIONS /mnt/localssd").strip().split(",")
    assert {"nodev", "nosuid"} <= set(options)
    assert node.ok("stat -c '%a %U' /mnt/localssd /mnt/localssd/jobs").split() == ["755", "root", "1777", "root"]
    node.ok("touch /mnt/localssd/jobs/kept")
    # After a reboot, the array is not assembled, or udev has assembled it under a different name.
    for assembled in ("true", "mdadm --assemble /dev/md77 /dev/loop0 /dev/loop1"):
        node.ok(f"{_OFF} && {assembled}")
        again = node.stage("43-scratch")
        assert again.returncode == 0, again.stdout[-2000:]
        node.ok("test -e /mnt/localssd/jobs/kept")
    # After the machine is stopped and started again, the disks are empty.
    node.ok(f"{_OFF}\n{_DISKS}")
    assert node.stage("43-scratch").returncode == 0
    assert node.ok("ls /mnt/localssd/jobs") == ""
    # The second disk contains a file system that Trainyard did not create.
    node.ok(f"{_OFF}\n{_DISKS}\nmkfs.ext4 -q -L theirs /dev/loop1")
    refused = node.stage("43-scratch")
    assert refused.returncode != 0
    assert "local disk /dev/loop1 holds data" in refused.stdout
    assert node.ok("blkid -p -s LABEL -o value /dev/loop1").strip() == "theirs"
