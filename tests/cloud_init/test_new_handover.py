"""Hand-overs that arrive at a node."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from components.node.handover import pack
from tests.cloud_init.node_sandbox import NodeSandbox, tar

READY = '{"node":"head","state":"ready"}'
BUSY = '{"node":"head","state":"running"}'
PLACE = "#!/bin/bash\n"


def bundle(word: str) -> bytes:
    """Return a bundle with a program and a file that contain this word."""
    return tar({"place": PLACE, "word": f"{word}\n"})


def hand_over(key: str = "one", archive: bytes | None = None, **files: bytes) -> dict[str, bytes]:
    """Return the files in a hand-over."""
    archive = bundle("first") if archive is None else archive
    own = {
        "bundle.sha256": hashlib.sha256(archive).hexdigest().encode() + b"\n",
        "bundle.tar": archive,
        "hosts": b"10.77.0.4 head\n",
        "known_hosts": b"head ssh-ed25519 AAAA\n",
        "user_key.pub": key.encode(),
    }
    return own | {name.replace("_sha256", ".sha256"): content for name, content in files.items()}


def send(
    node: NodeSandbox, files: dict[str, bytes], bootstrap: str = "active", status: str = READY
) -> subprocess.CompletedProcess[str]:
    """Send a hand-over to a node."""
    node.answer("systemctl", f'[ "$1" != show ] || echo {bootstrap}')
    node.write("var/lib/trainyard/status.json", status)
    return node.run("sbin/trainyard-receive", input=pack(files))


def restarted(node: NodeSandbox) -> list[str]:
    """Return the units that were restarted."""
    return [line.split()[-1] for line in node.calls("systemctl") if line.startswith("restart")]


def active(node: NodeSandbox) -> str:
    """Return the content of the file `word` in the active bundle."""
    return node.read("usr/local/lib/trainyard/word").strip()


@pytest.mark.parametrize(
    ("bootstrap", "status", "again"),
    [
        ("active", READY, True),
        ("failed", BUSY, True),
        ("activating", BUSY, False),
        # The bootstrap has done its last comparison, but systemd has not yet detected its exit.
        ("activating", READY, True),
    ],
)
def test_changed_hand_over_restarts_a_finished_bootstrap(
    tmp_path: Path, bootstrap: str, status: str, again: bool
) -> None:
    node = NodeSandbox(tmp_path)
    assert send(node, hand_over()).returncode == 0
    (tmp_path / "run/trainyard/handed-over").unlink()
    done = send(node, hand_over("two"), bootstrap, status)
    assert done.returncode == 0, done.stderr
    assert restarted(node) == ["trainyard-bootstrap.service"] * again
    assert (tmp_path / "run/trainyard/handed-over").exists() is (again and bootstrap != "failed")
    assert node.read("var/lib/trainyard/handover/user_key.pub") == "two"
    assert (tmp_path / "var/lib/trainyard/status.json").exists() is not again


def test_unchanged_hand_over_restarts_nothing(tmp_path: Path) -> None:
    node = NodeSandbox(tmp_path)
    send(node, hand_over())
    before = node.read("var/lib/trainyard/handover/complete")
    send(node, hand_over())
    assert restarted(node) == []
    assert node.read("var/lib/trainyard/handover/complete") == before


def test_new_bundle_is_activated_beside_the_previous_one(tmp_path: Path) -> None:
    node = NodeSandbox(tmp_path)
    send(node, hand_over())
    send(node, hand_over(archive=bundle("second")))
    assert active(node) == "second"
    assert node.read("var/lib/trainyard/bundles/previous/word") == "first\n"
    assert (tmp_path / "var/lib/trainyard/bundles/previous/place").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (hand_over(archive=bundle("second"), bundle_sha256=b"0" * 64), "the bundle is damaged: its SHA-256 is"),
        (
            hand_over(archive=bundle("second"), bundle_sha256=b"../../x"),
            "the hand-over contains no valid digest of a bundle",
        ),
        (hand_over(archive=bundle("second"), known_hosts=b""), "the tar on stdin has no known_hosts"),
        (hand_over(archive=b"no tar"), "the bundle cannot be unpacked"),
    ],
    ids=["other digest", "no digest", "no known_hosts", "no tar"],
)
def test_rejected_hand_over_changes_nothing(tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    node = NodeSandbox(tmp_path)
    send(node, hand_over())
    before = node.read("var/lib/trainyard/handover/complete")
    done = send(node, files)
    assert done.returncode == 2
    assert message in done.stderr
    assert "the previous bundle stays active" in done.stderr
    assert active(node) == "first"
    assert node.read("var/lib/trainyard/handover/complete") == before
    assert restarted(node) == []


def test_interrupted_hand_over_changes_nothing(tmp_path: Path) -> None:
    node = NodeSandbox(tmp_path)
    send(node, hand_over())
    node.answer("systemctl", "true")
    done = node.run("sbin/trainyard-receive", input=pack(hand_over(archive=bundle("second")))[:9000])
    assert done.returncode == 2
    assert active(node) == "first"
    # A complete hand-over is then applied.
    assert send(node, hand_over(archive=bundle("second"))).returncode == 0
    assert active(node) == "second"
