"""Hand-overs that arrive at a node, the passes that apply them, and what a node reports about itself."""

from __future__ import annotations

import hashlib
import json
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from components.node.bundle import Bundle
from components.node.handover import handover_files, pack
from components.plan.plan import ClusterPlan
from tests.cloud_init.metadata_server import Metadata
from tests.cloud_init.node_sandbox import NodeSandbox, tar
from tests.cloud_init.stage_sandbox import STAGES, Sandbox, bash, function
from tests.people import HANDED_OVER

READY = '{"node":"head","state":"ready"}'
BUSY = '{"node":"head","state":"running"}'


def bundle(word: str) -> bytes:
    return tar({"place": '#!/bin/bash\ncat "${0%/*}/word" >>"${PLACED:-/dev/null}"\n', "word": f"{word}\n"})


def hand_over(key: str = "one", archive: bytes | None = None, **files: bytes) -> dict[str, bytes]:
    archive = bundle("first") if archive is None else archive
    own = {
        "bundle.sha256": hashlib.sha256(archive).hexdigest().encode() + b"\n",
        "bundle.tar": archive,
        "hosts": b"10.77.0.4 head\n",
        "known_hosts": b"head ssh-ed25519 AAAA\n",
        "keys/trainer": key.encode(),
    }
    return own | {name.replace("_sha256", ".sha256"): content for name, content in files.items()}


def send(
    node: NodeSandbox, files: dict[str, bytes], bootstrap: str = "active", status: str = READY, **env: str
) -> subprocess.CompletedProcess[str]:
    node.answer("systemctl", f'[ "$1" != show ] || echo {bootstrap}')
    node.write("var/lib/trainyard/status.json", status)
    return node.run("sbin/trainyard-receive", input=pack(files), PLACED=str(node.root / "placed"), **env)


@pytest.fixture
def node(tmp_path: Path) -> NodeSandbox:
    """A node with a first bundle."""
    made = NodeSandbox(tmp_path)
    assert send(made, hand_over()).returncode == 0
    return made


def restarted(node: NodeSandbox) -> list[str]:
    return [line.split()[-1] for line in node.calls("systemctl") if line.startswith("restart")]


def active(node: NodeSandbox) -> str:
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
    assert node.read("var/lib/trainyard/handover/keys/trainer") == "two"
    assert (node.root / "var/lib/trainyard/status.json").exists() is not again


def test_the_head_keeps_the_former_cluster_key(node: NodeSandbox) -> None:
    def rotate(key: str) -> list[str]:
        """Send a hand-over with this key. Return the former key and certificate, and what the program prints."""
        files = {"cluster_key": f"{key}\n".encode(), "cluster_key-cert.pub": f"of {key}\n".encode()}
        printed = send(node, hand_over() | files).stdout
        former = [node.root / f"var/lib/trainyard/handover/former_cluster_key{end}" for end in ("", "-cert.pub")]
        return [*(file.read_text().strip() if file.exists() else "" for file in former), printed.splitlines()[0]]

    assert rotate("one") == ["", "", "hand-over: stored"]
    assert rotate("one") == ["", "", "hand-over: unchanged"]
    assert rotate("two") == ["one", "of one", "hand-over: stored"]
    assert rotate("two") == ["one", "of one", "hand-over: unchanged"]
    assert rotate("three") == ["two", "of two", "hand-over: stored"]


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


KILLER = """
set -o functrace
trap '((++COMMANDS != {number})) || kill -9 $$' DEBUG
"""


@pytest.mark.engine
def test_hand_over_that_was_killed_is_applied_by_the_next_one(node: NodeSandbox) -> None:
    """The program is killed before each of its commands in turn, and then receives the same content again. A Ctrl-C
    during `pulumi up` closes the connection, which kills the program as well."""
    node.write("killer", "")
    for number in range(1, 200):
        key = f"key {number}"
        files = hand_over(key, bundle(key))
        (node.root / "run/trainyard/handed-over").unlink(missing_ok=True)
        node.write("killer", KILLER.format(number=number))
        done = send(node, files, BASH_ENV=str(node.root / "killer"))
        if done.returncode == 0:
            break
        assert done.returncode == -9, done.stderr
        before = restarted(node)
        assert send(node, files).returncode == 0
        assert restarted(node) or before, f"the bootstrap was not restarted after a kill before command {number}"
        assert (node.root / "run/trainyard/handed-over").exists()
        assert (node.read("var/lib/trainyard/handover/keys/trainer"), active(node)) == (key, key)
        assert node.read("placed").split("\n")[-2] == key
    assert 30 < number < 199


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
    stubs = 'TRAINYARD_NODE=n\nconsole() { echo "$*"; }\nsleep() { :; }\n'
    return bash(f'{stubs}{moved}\npublish_host_key "$@"\n', "ssh-ed25519", "AAAAkey")


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
    (tmp_path / "shared/jobs").mkdir(parents=True)
    node.run("90-health", ROLE="head", SCHEDULER="none", NODE="a-0", SHARED_SOURCE="", GPUS="0").passed()
    return node.read("run/trainyard/partition")


@pytest.mark.parametrize(
    ("keys", "written"),
    [
        ({"mlx5_ib0": ["0x8045", "0x7fff", "0x0000"], "mlx5_ib1": ["0x8045", "0x7fff"]}, "0x8045\n"),
        ({"mlx5_ib0": ["0x8046", "0x7fff"], "mlx5_ib1": ["0x7fff", "0x8045"]}, "0x8045,0x8046\n"),
        ({"mlx5_ib0": ["0xddfb", "0x7fff", "0x5dfc"]}, "0xddfb\n"),
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
    status = function(STAGES.parent / "bootstrap", "status").replace("/run/trainyard", str(tmp_path))
    facts = f"state={tmp_path} boot_id=b TRAINYARD_NODE=a-0 TRAINYARD_ROLE=worker lib=/b\n"
    bash(f"{facts}read_uptime() {{ uptime=1.5; }}\n{status}\nstatus ready '' 0\n")
    assert json.loads((tmp_path / "status.json").read_text())["partition"] == partition


def test_hand_over_marks_nodes_of_same_fabric_groups(local_plan: ClusterPlan) -> None:
    apart, together = local_plan.workers[0], replace(local_plan.workers[1], placement="same_fabric")
    plan = replace(local_plan, workers=(apart, together))
    files = handover_files(plan, {host.name: "key" for host in plan.hosts}, HANDED_OVER, Bundle(archive=b"", digest=""))
    assert [line.split()[-1] for line in files["nodes"].decode().splitlines()] == ["any", "same_fabric"]


PARAMETERS = "TRAINYARD_NODE=n\nTRAINYARD_ROLE=worker\nTRAINYARD_GROUP=gpu\n"

READS = (
    '# runs: every pass\n: "$handover/nodes"\n'
    'cp "$root/var/lib/trainyard/handover/complete" "$root/run/trainyard/handover"\n'
)
"""A stage that, like 60-munge, reads the hand-over."""
SLURM = "TRAINYARD_OS=debian-13\nTRAINYARD_SCHEDULER=slurm\n"
REASONS = "readonly drain_reason=TY:update\n"
LOADED = "echo table inet trainyard_metadata; echo table inet trainyard_ports"
NO_SCHEDULER = SLURM.replace("slurm", "none")


def node_with(root: Path, stages: dict[str, str], bundle: str = "b") -> NodeSandbox:
    """Return a node with these stages in its active bundle."""
    node, folder = NodeSandbox(root), f"var/lib/trainyard/bundles/{bundle}"
    node.write("etc/trainyard/birth.env", PARAMETERS)
    node.write("etc/ssh/ssh_host_ed25519_key.pub", "ssh-ed25519 AAAA root@n\n")
    node.write("etc/systemd/system/trainyard-bootstrap.service", "")
    node.write("etc/systemd/system/multi-user.target.wants/x", "")
    node.write(f"{folder}/stage.sh", f"root={root}\n")
    node.write(f"{folder}/kinds/worker-gpu/kind.env", SLURM)
    node.write(f"{folder}/kinds/worker-gpu/stages", "".join(f"{name}\n" for name in stages))
    for name, text in stages.items():
        node.write(f"{folder}/stages/{name}", text)
    node.answer("nft", LOADED)
    if bundle == "birth":
        node.activate(bundle, "bootstrap", "place")
        return node
    node.write(f"{folder}/reasons.sh", REASONS)
    node.write("var/lib/trainyard/handover/complete", "one\n")
    node.activate(bundle, "bootstrap", "place", "idle.sh", "passes.sh")
    return node


def timeline(node: NodeSandbox) -> list[str]:
    return [" ".join(line.split()[1:]) for line in node.read("var/lib/trainyard/timeline").splitlines()]


ONCE = "# runs: once\n# next to jobs: yes\n"
WAITS = {"44-x": "# runs: every boot\n# next to jobs: no\ntrue\n", "60-y": READS}
"""A stage that needs a node without jobs, and a stage that does not."""


def test_bootstrap_runs_again_after_a_late_hand_over(tmp_path: Path) -> None:
    # The stage simulates a run of trainyard-receive.
    late = 'cd "$root/var/lib/trainyard/handover"\n[[ $(<complete) == two ]] || echo two | tee complete nodes\n'
    node = node_with(tmp_path, {"60-names": READS, "70-later": late})
    done = node.bootstrap()
    assert done.returncode == 0, done.stderr
    assert timeline(node) == [*["60-names running", "70-later running"] * 2, "ready"]


def test_stages_of_the_bundle_follow_those_of_birth(tmp_path: Path) -> None:
    node = node_with(tmp_path, {"10-base": f"{ONCE}true\n"}, bundle="birth")
    life = tmp_path / "var/lib/trainyard/bundles/life"
    process = node.start_bootstrap()
    node.wait_for_line("var/lib/trainyard/timeline", "hand-over running")
    # The bundle also contains the unchanged stages from user-data.
    subprocess.run(["cp", "-a", life.with_name("birth"), life], check=True)
    (life / "stages/60-names").write_text(f"echo applied >$root/applied\n{READS}")
    (life / "kinds/worker-gpu/stages").write_text("10-base\n60-names\n")
    node.write("var/lib/trainyard/handover/complete", "one\n")
    (life / "reasons.sh").write_text(REASONS)
    node.activate("life", "idle.sh", "passes.sh")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert timeline(node) == ["10-base running", "hand-over running", "60-names running", "ready"]
    assert node.read("applied") == "applied\n"
    assert '"bundle":"life"' in node.read("var/lib/trainyard/status.json")


def test_stages_beside_jobs_run_once_per_boot(tmp_path: Path) -> None:
    node = node_with(tmp_path, WAITS)
    node.answer("systemctl", "false")
    node.answer("pgrep", "false")
    for _ in range(2):
        done = node.bootstrap()
        assert done.returncode == 0, done.stderr
    assert timeline(node) == ["44-x running", "60-y running", "ready", "60-y running", "ready"]


def slurm(node: NodeSandbox, state: str, jobs: str) -> None:
    """Make the fake Slurm commands report this node state and these jobs."""
    node.write("jobs", jobs)
    node.answer("systemctl", "true")
    node.answer("scontrol", f"[ $2 = show ] && echo 'NodeName=n State={state} Reason=TY:update [root@x]' || true")
    node.answer("squeue", f"cat {node.root}/jobs")


def pass_after(node: NodeSandbox, bundle: str, changes: dict[str, str], mark: bool = True) -> list[str]:
    """Activate a copy of the active bundle with changed files, run the bootstrap, and return the stages that ran."""
    folder = node.root / "var/lib/trainyard/bundles"
    subprocess.run(["cp", "-a", (node.root / "usr/local/lib/trainyard").resolve(), folder / bundle], check=True)
    for name, text in changes.items():
        (folder / bundle / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / bundle / name).write_text(text)
    node.activate(bundle)
    if mark:
        node.write("run/trainyard/handed-over", "")
    before = len(timeline(node))
    done = node.bootstrap()
    assert done.returncode == 0, done.stderr
    assert not (node.root / "run/trainyard/handed-over").exists()
    return [line.removesuffix(" running") for line in timeline(node)[before:-1]]


EVERY_BOOT = "# runs: every boot\n# next to jobs: yes\ntrue\n"
NAMES = ["40-first", "60-names", "70-second", "80-third"]
NEW_STAGE = {
    "stages/75-new": EVERY_BOOT,
    "kinds/worker-gpu/stages": "".join(f"{name}\n" for name in sorted([*NAMES, "75-new"])),
}
CASES: dict[str, tuple[dict[str, str], bool, list[str]]] = {
    "no change": ({}, True, []),
    "later stage": ({"stages/70-second": f"{EVERY_BOOT}# new\n"}, True, ["70-second", "80-third"]),
    "new stage": (NEW_STAGE, True, ["75-new", "80-third"]),
    "first stage": ({"stages/40-first": f"{EVERY_BOOT}# new\n"}, True, NAMES),
    "shared file": ({"stage.sh": "# new\n"}, True, NAMES),
    "parameters": ({"kinds/worker-gpu/kind.env": SLURM + "X=1\n"}, True, NAMES),
    "other kind": ({"kinds/head/kind.env": "X=1\n"}, True, []),
    "bytecode that Python has written": ({"health/__pycache__/gpu.cpython-312.pyc": "x"}, True, []),
    "no hand-over": ({}, False, NAMES),
}
"""Changed files of a bundle, whether it arrives with a hand-over, and the stages that then run."""


@pytest.mark.parametrize(("changes", "mark", "ran"), CASES.values(), ids=CASES)
def test_pass_starts_with_the_first_changed_stage(
    tmp_path: Path, changes: dict[str, str], mark: bool, ran: list[str]
) -> None:
    node = node_with(tmp_path, dict.fromkeys(NAMES, EVERY_BOOT) | {"60-names": READS})
    (tmp_path / "var/lib/trainyard/bundles/b/kinds/head").mkdir()
    if "stage.sh" in changes:
        changes = {"stage.sh": f"root={tmp_path}\n# new\n"}
    assert node.bootstrap().returncode == 0
    assert pass_after(node, "c", changes, mark) == ran


def test_stages_that_read_a_changed_part_of_the_hand_over_run(tmp_path: Path) -> None:
    people = EVERY_BOOT + '# later stages: unaffected\n: "$handover/people" "$handover/keys"/*\n'
    slurm, files = EVERY_BOOT + ': "$handover/slurm/$file"\n', "var/lib/trainyard/handover"
    stages = {"40-first": EVERY_BOOT, "60-names": READS, "66-people": people, "70-slurm": slurm, "80-last": EVERY_BOOT}
    node = node_with(tmp_path, stages)
    changes: dict[str, tuple[str, list[str]]] = {
        "first": ("complete", []),
        "people": ("people", ["66-people"]),
        "key": ("keys/ann", ["66-people"]),
        "slurm": ("slurm/slurm.conf", ["70-slurm", "80-last"]),
        "nodes": ("nodes", ["60-names", "66-people", "70-slurm", "80-last"]),
    }
    for name in ("people", "nodes", "slurm/slurm.conf", "keys/bob"):
        node.write(f"{files}/{name}", "one\n")
    assert node.bootstrap().returncode == 0
    for bundle, (file, ran) in changes.items():
        node.write(f"{files}/{file}", f"{bundle}\n")
        node.write(f"{files}/complete", f"{bundle}\n")
        assert pass_after(node, bundle, {}) == ran, bundle
        assert node.read("run/trainyard/handover") == f"{bundle}\n", "a hand-over without changes counts as read"


def test_users_can_neither_open_nor_inherit_the_locks(tmp_path: Path) -> None:
    """Every user who can read a file can lock it, and so block the bootstrap and the hand-over."""
    node = node_with(
        tmp_path, {"40-first": EVERY_BOOT + "[[ ! -e /proc/$$/fd/8 && ! -e /proc/$$/fd/9 ]]\n", "60-names": READS}
    )
    for name in ("bootstrap", "handover"):
        node.write(f"run/trainyard/{name}.lock", "")
        (tmp_path / f"run/trainyard/{name}.lock").chmod(0o644)  # as former versions created it
    done = node.bootstrap()
    assert done.returncode == 0, done.stderr
    locks = list((tmp_path / "run/trainyard").glob("*.lock"))
    assert len(locks) == 2
    assert {stat.S_IMODE(lock.stat().st_mode) for lock in locks} == {0o600}


def test_failed_stage_runs_again_after_a_hand_over(tmp_path: Path) -> None:
    fails = EVERY_BOOT + 'test -e "$root/fixed"\n'
    node = node_with(tmp_path, {"40-first": EVERY_BOOT, "60-names": READS, "70-second": fails})
    node.answer("sleep", "true")
    assert node.bootstrap().returncode == 1
    node.write("fixed", "")
    assert pass_after(node, "c", {}) == ["70-second"]


def test_stage_waits_for_running_jobs(tmp_path: Path) -> None:
    node = node_with(tmp_path, WAITS)
    slurm(node, "MIXED", "12\n13\n")
    process = node.start_bootstrap()
    node.wait_for_line("var/lib/trainyard/timeline", "44-x waiting")
    status = node.read("var/lib/trainyard/status.json")
    assert '"state":"waiting","stage":"44-x"' in status
    assert '"reason":"stages 44-x need a node without jobs; running jobs: 12, 13"' in status
    assert node.calls("scontrol")[1] == "update nodename=n state=drain reason=TY:update"
    # The other stages did not wait. A new hand-over ends the wait and starts a new pass, in which the node is idle.
    node.write("jobs", "")
    node.write("var/lib/trainyard/handover/complete", "two\n")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert timeline(node) == ["60-y running", "44-x waiting", "44-x running", "60-y running", "ready"]
    assert "update nodename=n state=resume" in node.calls("scontrol")


def test_node_that_others_drained_stays_drained(tmp_path: Path) -> None:
    node = node_with(tmp_path, WAITS)
    slurm(node, "IDLE+DRAIN", "")
    assert node.bootstrap().returncode == 0
    assert not [call for call in node.calls("scontrol") if call.startswith("update")]


def test_node_that_leaves_slurm_waits_only_for_job_processes(tmp_path: Path) -> None:
    """slurmd is running, but slurmctld on the head has stopped, so the node cannot be drained."""
    node = node_with(tmp_path, WAITS)
    node.write("var/lib/trainyard/bundles/b/kinds/worker-gpu/kind.env", NO_SCHEDULER)
    node.write("var/lib/trainyard/drained", "")
    node.write("jobs", "")
    node.answer("systemctl", "true")
    node.answer("scontrol", "exit 1")
    node.answer("squeue", "exit 1")
    node.answer("pgrep", f"test -e {node.root}/jobs")
    idle = "usr/local/lib/trainyard/idle.sh"
    node.write(idle, node.read(idle).replace("poll_seconds=10", "poll_seconds=1"))
    process = node.start_bootstrap()
    node.wait_for_line("var/lib/trainyard/timeline", "44-x waiting")
    assert "need a node without jobs; running jobs: unknown" in node.read("var/lib/trainyard/status.json")
    (node.root / "jobs").unlink()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert timeline(node)[-3:] == ["44-x running", "60-y running", "ready"]
    assert not (node.root / "var/lib/trainyard/drained").exists()


def test_bundle_without_the_nodes_kind_fails(tmp_path: Path) -> None:
    node = node_with(tmp_path, {"60-y": "true\n"})
    node.write("etc/trainyard/birth.env", PARAMETERS.replace("gpu", "cpu"))
    assert node.bootstrap().returncode == 1
    assert "the bundle has no parameters for this node: worker-cpu" in node.read("var/lib/trainyard/status.json")


@pytest.mark.parametrize("missing", ["metadata", "ports"])
def test_a_node_without_its_network_rules_is_not_ready(tmp_path: Path, missing: str) -> None:
    node = node_with(tmp_path, {"60-y": READS})
    node.answer("nft", LOADED.replace(missing, "other"))
    assert node.bootstrap().returncode == 1
    report = json.loads(node.read("var/lib/trainyard/status.json"))
    assert (report["state"], report["stage"]) == ("failed", "rules")
    assert "a table of the network rules is missing" in report["command"]


def test_place_replaces_changed_units_with_few_processes(tmp_path: Path) -> None:
    node = NodeSandbox(tmp_path)
    units, system = "usr/local/lib/trainyard/units", tmp_path / "etc/systemd/system"
    node.write("etc/trainyard/birth.env", "TRAINYARD_ROLE=head\n")
    written = {
        "one.service": "[Unit]\n",
        "two@.service": "[Service]\n",
        "one.service.d/trainyard.conf": "[Service]\nNice=5\n",
        "slurmd.service.d/a.conf": "[Service]\n",
        "slurmd.service.d/b.conf": "[Unit]\n",
    }
    for name, text in written.items():
        node.write(f"{units}/{name}", text)
    node.write("usr/local/lib/trainyard/sbin/trainyard-status", "")
    node.write("etc/systemd/system/slurmd.service.d/site.conf", "[Service]\nUMask=022\n")
    node.answer("mv", 'exec /bin/mv "$@"')
    node.answer("systemctl", "echo NeedDaemonReload=yes")

    def place() -> tuple[int, list[str]]:
        node.answer("mv", 'exec /bin/mv "$@"')
        node.answer("systemctl", "echo NeedDaemonReload=yes")
        done = node.run("lib/trainyard/place")
        assert done.returncode == 0, done.stderr
        return len(node.calls("mv")), node.calls("systemctl")

    # One call replaces node.env, one moves the new files and folders, and one moves files to the existing folder.
    show = "show --all -p NeedDaemonReload --value"
    names = "one.service* two@.service* one.service* slurmd.service* slurmd.service*"
    assert place() == (3, [f"{show} {names}", "daemon-reload"])
    assert {name: (system / name).read_text() for name in written} == written
    assert (system / "slurmd.service.d/site.conf").exists()
    assert not (system / "trainyard-new").exists()
    assert place() == (0, [])

    # An interrupted run left a file.
    node.write("etc/systemd/system/trainyard-new/one.service.d/trainyard.conf", "[Unit]\n")
    node.write(f"{units}/slurmd.service.d/a.conf", "[Service]\nNice=1\n")
    assert place() == (1, [f"{show} slurmd.service*", "daemon-reload"])
    assert (system / "slurmd.service.d/a.conf").read_text() == "[Service]\nNice=1\n"
    assert (system / "one.service.d/trainyard.conf").read_text() == written["one.service.d/trainyard.conf"]
    assert not (system / "trainyard-new").exists()
