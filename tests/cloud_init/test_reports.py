"""Hand-overs that arrive at a node, and what a node reports: its host key and its InfiniBand partition."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import gate.nodes
import pytest

from components.node.bundle import Bundle
from components.node.handover import Secrets, handover_files, pack
from components.plan.plan import ClusterPlan
from tests.cloud_init.node_sandbox import NodeSandbox, tar
from tests.cloud_init.stage_sandbox import STAGES, Sandbox, function

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


@pytest.fixture
def node(tmp_path: Path) -> NodeSandbox:
    """A node with a first bundle."""
    made = NodeSandbox(tmp_path)
    assert send(made, hand_over()).returncode == 0
    return made


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
        (
            hand_over(archive=bundle("second"), bundle_sha256=b"../../x"),
            "the hand-over contains no valid digest of a bundle",
        ),
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


class Metadata(BaseHTTPRequestHandler):
    """A metadata server that first refuses the requests in `refusals` and then stores guest attributes."""

    taken: list[tuple[str, str | None, bytes]]
    refusals: list[int]

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.refusals:
            self.send_response(self.refusals.pop())
        else:
            self.taken.append((self.path, self.headers["Metadata-Flavor"], body))
            self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


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
        ("Standard PC (Q35)", [], False),
    ],
)
def test_host_key_is_published_on_google_cloud_only(
    tmp_path: Path, firmware: str, refusals: list[int], published: bool
) -> None:
    taken: list[tuple[str, str | None, bytes]] = []
    handler = type("Server", (Metadata,), {"taken": taken, "refusals": list(refusals)})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        output = publish(tmp_path, firmware, server.server_port)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    path = "/computeMetadata/v1/instance/guest-attributes/hostkeys/ssh-ed25519"
    assert taken == ([(path, "Google", b"AAAAkey")] if published else [])
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


def split(monkeypatch: pytest.MonkeyPatch, state: Path, *nodes: tuple[str, str, str | None]) -> str:
    """Run the gate's check on nodes, given as name, placement and reported partition. Return the message."""
    monkeypatch.setattr(gate.nodes, "STATE", state)
    (state / "nodes").mkdir()
    for name, _, partition in nodes:
        status = {"state": "ready"} | ({} if partition is None else {"partition": partition})
        (state / "nodes" / f"{name}.json").write_text(json.dumps(status))
    lines = [[name, "10.0.0.1", name.split("-")[0], "8", placement] for name, placement, _ in nodes]
    return "\n".join(gate.nodes.check_partitions(lines))


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        # A different group may be in a different partition.
        ("a-0=0x8045 a-1=0x8045 b-0=0x8046", ""),
        ("a-0=0x8045 a-1=0x8046 a-2=0x8045", "group a: placement same_fabric.*0x8045: a-0, a-2; 0x8046: a-1"),
        ("a-0= a-1=0x8045", "no partition: a-0"),
        ("a-0=", "no partition: a-0"),
    ],
)
def test_same_fabric_groups_must_be_in_one_partition(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nodes: str, words: str
) -> None:
    given = [node.split("=") for node in nodes.split()]
    message = split(monkeypatch, tmp_path, *((name, "same_fabric", key) for name, key in given))
    assert bool(message) is bool(words)
    assert re.search(words, message, re.S)


def test_groups_without_same_fabric_are_not_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert split(monkeypatch, tmp_path, ("a-0", "none", "0x8045"), ("a-1", "none", None)) == ""


def test_hand_over_marks_nodes_of_same_fabric_groups(local_plan: ClusterPlan) -> None:
    apart, together = local_plan.workers[0], replace(local_plan.workers[1], placement="same_fabric")
    plan = replace(local_plan, workers=(apart, together))
    secrets = Secrets(munge_key="bXVuZ2U=", cluster_key="cluster", user_public="ssh-ed25519 AAAAuser user@yard")
    files = handover_files(plan, {host.name: "key" for host in plan.hosts}, secrets, Bundle(archive=b"", digest=""))
    assert [line.split()[-1] for line in files["nodes"].decode().splitlines()] == ["any", "same_fabric"]
