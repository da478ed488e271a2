"""Hand-overs that arrive at a node, and what a node reports: its host key and its InfiniBand partition."""

from __future__ import annotations

import hashlib
import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from components.node.bundle import Bundle
from components.node.handover import Secrets, handover_files, pack
from components.plan.plan import ClusterPlan
from tests.cloud_init.metadata_server import Metadata
from tests.cloud_init.node_sandbox import NodeSandbox, tar
from tests.cloud_init.stage_sandbox import STAGES, Sandbox, function

READY = '{"node":"head","state":"ready"}'
BUSY = '{"node":"head","state":"running"}'


def bundle(word: str) -> bytes:
    """Return a bundle with a program and a file that contains this word."""
    return tar({"place": "#!/bin/bash\n", "word": f"{word}\n"})


def hand_over(key: str = "one", archive: bytes | None = None, **files: bytes) -> dict[str, bytes]:
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
    node.answer("systemctl", f'[ "$1" != show ] || echo {bootstrap}')
    node.write("var/lib/trainyard/status.json", status)
    return node.run("sbin/trainyard-receive", input=pack(files))


@pytest.fixture
def node(tmp_path: Path) -> NodeSandbox:
    """A node with a first bundle."""
    made = NodeSandbox(tmp_path)
    assert send(made, hand_over()).returncode == 0
    return made


def restarted(node: NodeSandbox) -> list[str]:
    return [line.split()[-1] for line in node.calls("systemctl") if line.startswith("restart")]


def active(node: NodeSandbox) -> str:
    """Return the word in the active bundle."""
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
    node: NodeSandbox, bootstrap: str, status: str, again: bool
) -> None:
    (node.root / "run/trainyard/handed-over").unlink()
    done = send(node, hand_over("two"), bootstrap, status)
    assert done.returncode == 0, done.stderr
    assert restarted(node) == ["trainyard-bootstrap.service"] * again
    assert (node.root / "run/trainyard/handed-over").exists() is (again and bootstrap != "failed")
    assert node.read("var/lib/trainyard/handover/user_key.pub") == "two"
    assert (node.root / "var/lib/trainyard/status.json").exists() is not again


def test_unchanged_hand_over_restarts_nothing(node: NodeSandbox) -> None:
    before = node.read("var/lib/trainyard/handover/complete")
    send(node, hand_over())
    assert restarted(node) == []
    assert node.read("var/lib/trainyard/handover/complete") == before


def test_new_bundle_is_activated_beside_the_previous_one(node: NodeSandbox) -> None:
    send(node, hand_over(archive=bundle("second")))
    assert active(node) == "second"
    assert node.read("var/lib/trainyard/bundles/previous/word") == "first\n"
    assert (node.root / "var/lib/trainyard/bundles/previous/place").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (hand_over(archive=bundle("second"), bundle_sha256=b"0" * 64), "the bundle is damaged: its SHA-256 is"),
        (hand_over(archive=bundle("second"), bundle_sha256=b"../../x"), "contains no valid digest of a bundle"),
        (hand_over(archive=bundle("second"), known_hosts=b""), "the tar on stdin has no known_hosts"),
        (hand_over(archive=b"no tar"), "the bundle cannot be unpacked"),
    ],
    ids=["other digest", "no digest", "no known_hosts", "no tar"],
)
def test_rejected_hand_over_changes_nothing(node: NodeSandbox, files: dict[str, bytes], message: str) -> None:
    before = node.read("var/lib/trainyard/handover/complete")
    done = send(node, files)
    assert done.returncode == 2
    assert message in done.stderr
    assert "the previous bundle stays active" in done.stderr
    assert active(node) == "first"
    assert node.read("var/lib/trainyard/handover/complete") == before
    assert restarted(node) == []


def test_interrupted_hand_over_changes_nothing(node: NodeSandbox) -> None:
    node.answer("systemctl", "true")
    done = node.run("sbin/trainyard-receive", input=pack(hand_over(archive=bundle("second")))[:9000])
    assert done.returncode == 2
    assert active(node) == "first"
    # A complete hand-over is then applied.
    assert send(node, hand_over(archive=bundle("second"))).returncode == 0
    assert active(node) == "second"


def publish(tmp_path: Path, firmware: str, port: int) -> str:
    """Run publish_host_key from the bootstrap with this firmware and with the metadata server on this port."""
    product = tmp_path / "product_name"
    product.write_text(f"{firmware}\n")
    moved = (
        function(STAGES.parent / "bootstrap", "publish_host_key")
        .replace("/sys/class/dmi/id/product_name", str(product))
        .replace("/dev/tcp/169.254.169.254/80", f"/dev/tcp/127.0.0.1/{port}")
    )
    stubs = 'set -euo pipefail\nTRAINYARD_NODE=n\nconsole() { echo "$*"; }\nsleep() { :; }\n'
    script = f'{stubs}{moved}\npublish_host_key "$@"\n'
    command = ["bash", "-c", script, "_", "ssh-ed25519", "AAAAkey"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout


@pytest.mark.engine
@pytest.mark.parametrize(
    ("firmware", "refusals", "published"),
    [
        ("Google Compute Engine", [], True),
        ("Google Compute Engine", [503, 404], True),
        ("Google Compute Engine", [403], False),
        ("Standard PC (Q35)", [], False),
    ],
)
def test_host_key_is_published_on_google_cloud_only(
    tmp_path: Path, firmware: str, refusals: list[int], published: bool
) -> None:
    with Metadata(("Metadata-Flavor", "Google"), refusals=list(refusals)).running() as service:
        output = publish(tmp_path, firmware, service.port)
    path = "/computeMetadata/v1/instance/guest-attributes/hostkeys/ssh-ed25519"
    assert service.written == ({path: b"AAAAkey"} if published else {})
    assert ("could not publish its host key" in output) is (403 in refusals)


@pytest.mark.engine
def test_missing_metadata_server_is_logged_and_boot_continues(tmp_path: Path) -> None:
    assert "could not publish its host key" in publish(tmp_path, "Google Compute Engine", 9)


def report(tmp_path: Path, keys: dict[str, list[str]]) -> str | None:
    """Run 90-health on a head with these cards in sysfs. Return the partition file, or None if it does not exist."""
    node = Sandbox(tmp_path, ("timeout",))
    folder = "sys/class/infiniband/{}/ports/1/pkeys/{}"
    entries = [(card, index, entry) for card in keys for index, entry in enumerate(keys[card])]
    node.write({folder.format(card, index): f"{entry}\n" for card, index, entry in entries})
    (tmp_path / "shared").mkdir()
    node.run("90-health", ROLE="head", SCHEDULER="none", NODE="a-0", SHARED_SOURCE="", GPUS="0").passed()
    return node.read("run/trainyard/partition")


@pytest.mark.parametrize(
    ("keys", "written"),
    [
        ({"mlx5_ib0": ["0x8045", "0x7fff", "0x0000"], "mlx5_ib1": ["0x8045", "0x7fff"]}, "0x8045\n"),
        ({"mlx5_ib0": ["0x8046", "0x7fff"], "mlx5_ib1": ["0x7fff", "0x8045"]}, "0x8045,0x8046\n"),
        ({"mlx5_ib0": ["0x7fff"], "mlx5_an0": ["0x8001"]}, "\n"),
        ({}, None),
    ],
)
def test_node_reports_the_partitions_of_its_infiniband_cards(
    tmp_path: Path, keys: dict[str, list[str]], written: str | None
) -> None:
    assert report(tmp_path, keys) == written


@pytest.mark.parametrize(("written", "partition"), [("0x8045\n", "0x8045"), ("\n", ""), (None, "")])
def test_status_of_a_node_contains_its_partition(tmp_path: Path, written: str | None, partition: str) -> None:
    if written is not None:
        (tmp_path / "partition").write_text(written)
    script = (
        f"set -euo pipefail\nstate={tmp_path} boot_id=b TRAINYARD_NODE=a-0 TRAINYARD_ROLE=worker lib=/b\n"
        "read_uptime() { uptime=1.5; }\n"
        + function(STAGES.parent / "bootstrap", "status").replace("/run/trainyard", str(tmp_path))
        + "\nstatus ready '' 0\n"
    )
    subprocess.run(["bash", "-c", script], check=True, timeout=30)
    assert json.loads((tmp_path / "status.json").read_text())["partition"] == partition


def test_hand_over_marks_nodes_of_same_fabric_groups(local_plan: ClusterPlan) -> None:
    apart, together = local_plan.workers[0], replace(local_plan.workers[1], placement="same_fabric")
    plan = replace(local_plan, workers=(apart, together))
    secrets = Secrets(munge_key="bXVuZ2U=", cluster_key="cluster", user_public="ssh-ed25519 AAAAuser user@yard")
    files = handover_files(plan, {host.name: "key" for host in plan.hosts}, secrets, Bundle(archive=b"", digest=""))
    assert [line.split()[-1] for line in files["nodes"].decode().splitlines()] == ["any", "same_fabric"]
