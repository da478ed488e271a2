"""Security updates by unattended-upgrades from package archives on the test machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from components.plan.plan import ClusterPlan
from tests.integration.bare import BareHost, prepared, run_stage
from tests.integration.project import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.full]

_SECURITY, _OTHER = "rsync", "less"
_HELD = ("slurmd", "munge", "linux-image-cloud-amd64", "mariadb-server", "nfs-kernel-server", "nvidia-driver")
_ARCHIVES = f"""
set -e
cd /var/tmp
package() {{ # package NAME VERSION FOLDER
  mkdir -p $3 built/DEBIAN
  printf '%s\\n' "Package: $1" "Version: $2" 'Architecture: all' 'Maintainer: t <t@t>' 'Description: t' \\
    >built/DEBIAN/control
  printf '#!/bin/sh\\ntouch /run/reboot-required\\n' >built/DEBIAN/postinst
  chmod 755 built/DEBIAN/postinst
  dpkg-deb -Zgzip -b built $3/$1_$2.deb >/dev/null
}}
archive() {{ # archive FOLDER LABEL CODENAME
  (cd $1
  for file in *.deb; do
    dpkg-deb -f $file
    printf 'Filename: ./%s\\nSize: %s\\nSHA256: %s\\n\\n' $file $(stat -c %s $file) $(sha256sum <$file | cut -d' ' -f1)
  done >Packages
  printf 'Origin: Debian\\nLabel: %s\\nCodename: %s\\nDate: %s\\nSHA256:\\n %s %s Packages\\n' $2 $3 "$(date -Ru)" \\
    $(sha256sum <Packages | cut -d' ' -f1) $(stat -c %s Packages) >Release)
  echo "deb [trusted=yes] file:/var/tmp/$1 ./" >>/etc/apt/sources.list
}}
rm -rf /etc/apt/sources.list /etc/apt/sources.list.d
package nvidia-driver 1 old
dpkg -i old/*.deb >/dev/null
rm -f /run/reboot-required
for name in {" ".join((_SECURITY, *_HELD))}; do package $name 99:1 security; done
package {_OTHER} 99:1 other
archive security Debian-Security trixie-security
archive other Debian trixie
chmod -R a+rX /var/tmp
"""
_STAGES = run_stage("10-base") + run_stage("31-system")


@pytest.fixture(scope="module")
def node(local_plan: ClusterPlan, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareHost]:
    """A machine on which security updates are configured, with package archives on its own disk."""
    with prepared(local_plan, tmp_path_factory.mktemp("updates"), 27100) as host:
        host.ok(_ARCHIVES + _STAGES)
        # The stage does not wait until sshd has reloaded. A connection during the reload would be reset.
        host.ssh("systemctl restart ssh.service")
        wait_until("sshd to accept connections", 60, lambda: host.ssh("true").returncode == 0, 1)
        yield host


def updated(node: BareHost) -> set[str]:
    lines = node.ok("dpkg-query -W -f '${Package} ${Version}\\n'").splitlines()
    return {name for name, version in map(str.split, lines) if version == "99:1"}


def test_only_safe_security_updates_are_installed(node: BareHost) -> None:
    assert updated(node) == set()
    boot_id = node.ssh("cat /proc/sys/kernel/random/boot_id").stdout
    done = node.ssh("systemctl start trainyard-updates.service", timeout=600)
    log = node.ssh("cat /var/log/unattended-upgrades/unattended-upgrades.log; journalctl -u trainyard-updates").stdout
    assert done.returncode == 0, log
    assert updated(node) == {_SECURITY}, log
    # The update requested a reboot.
    asked = node.ssh("test -e /run/reboot-required && ! test -e /run/systemd/shutdown/scheduled")
    assert asked.returncode == 0
    assert node.ssh("cat /proc/sys/kernel/random/boot_id").stdout == boot_id
    # The timer starts updates hours after the boot.
    timers = node.ssh("systemctl list-timers --all --no-legend; systemctl is-enabled apt-daily-upgrade.timer").stdout
    assert "trainyard-updates.timer" in timers
    assert "masked" in timers
    shown = "systemctl show --value -p NextElapseUSecMonotonic trainyard-updates.timer"
    assert "h" in node.ssh(shown).stdout
