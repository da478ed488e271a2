"""The job user's key: its file, and the users for which sshd reads this file."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.cloud_init.stage_sandbox import Ran, Sandbox
from tests.offline.loopback_sshd import make_key, sshd_binary

KEY = "ssh-ed25519 AAAAuser user@yard\n"
READ = "0 authorizedkeysfile {root}/etc/trainyard/authorized_keys/%u .ssh/authorized_keys"
ENV = {"SCHEDULER": "none", "CLUSTER": "yard", "HEAD_NAME": "yard-head", "HEAD_IP": "10.77.0.4"}


def hand_over(root: Path, role: str = "head", key: str = KEY, sshd: str = READ) -> Ran:
    """Run the stage that reads the hand-over. `sshd`: exit code and output of the fake `sshd -T`."""
    for path, text in {"complete": "one", "hosts": "", "known_hosts": "", "user_key.pub": key, "etc/hosts": ""}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    (root / "run/trainyard").mkdir(parents=True, exist_ok=True)
    node = Sandbox(root, ("sshd",), {"sshd -T": sshd.format(root=root)})
    return node.run("60-munge", **ENV, ROLE=role, TEST_HANDOVER=str(root))


@pytest.mark.parametrize("role", ["head", "worker"])
def test_rotated_key_replaces_the_previous_key(tmp_path: Path, role: str) -> None:
    file = tmp_path / "etc/trainyard/authorized_keys/trainer"
    for key in (KEY, KEY.replace("AAAA", "BBBB")):
        hand_over(tmp_path, role, key).passed()
        assert file.read_text() == key


def test_key_file_that_sshd_ignores_is_an_error(tmp_path: Path) -> None:
    ran = hand_over(tmp_path, sshd="0 authorizedkeysfile .ssh/authorized_keys")
    assert ran.code != 0
    assert ran.output[-1].startswith(
        f"fail sshd does not read {tmp_path}/etc/trainyard/authorized_keys for the user trainer"
    )
    assert ". Fix: let " in ran.output[-1]


def test_key_check_is_skipped_if_sshd_prints_no_settings(tmp_path: Path) -> None:
    assert hand_over(tmp_path, sshd="1 Missing privilege separation directory: /run/sshd").code == 0


@pytest.mark.skipif(sshd_binary() is None, reason="sshd is not installed")
def test_sshd_reads_the_key_file_for_the_job_user_only(tmp_path: Path) -> None:
    (tmp_path / "usr/local/bin").mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/hosts").write_text("# trainyard\n# end of trainyard\n")
    ran = Sandbox(tmp_path, ("sysctl", "systemctl"), {}).run("10-base", SHARED_DOMAIN="")
    assert ran.code == 0, ran.errors
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
