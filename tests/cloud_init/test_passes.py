"""Passes of the bootstrap: the stages that run, that are skipped, and that wait for jobs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cloud_init.node_sandbox import NodeSandbox

PARAMETERS = "TRAINYARD_NODE=n\nTRAINYARD_ROLE=worker\nTRAINYARD_GROUP=gpu\n"

READS = '# runs: every pass\ncp "$root/var/lib/trainyard/handover/complete" "$root/run/trainyard/handover"\n'
"""A stage that, like 60-munge, reads the hand-over."""
SLURM = "TRAINYARD_OS=debian-13\nTRAINYARD_SCHEDULER=slurm\n"
REASONS = "readonly drain_reason=TY:update\n"
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
STAGES = ["40-first", "60-names", "70-second", "80-third"]
NEW_STAGE = {
    "stages/75-new": EVERY_BOOT,
    "kinds/worker-gpu/stages": "".join(f"{name}\n" for name in sorted([*STAGES, "75-new"])),
}
CASES: dict[str, tuple[dict[str, str], bool, list[str]]] = {
    "no change": ({}, True, []),
    "later stage": ({"stages/70-second": f"{EVERY_BOOT}# new\n"}, True, ["70-second", "80-third"]),
    "new stage": (NEW_STAGE, True, ["75-new", "80-third"]),
    "first stage": ({"stages/40-first": f"{EVERY_BOOT}# new\n"}, True, STAGES),
    "shared file": ({"stage.sh": "# new\n"}, True, STAGES),
    "parameters": ({"kinds/worker-gpu/kind.env": SLURM + "X=1\n"}, True, STAGES),
    "other kind": ({"kinds/head/kind.env": "X=1\n"}, True, []),
    "no hand-over": ({}, False, STAGES),
}
"""Changed files of a bundle, whether it arrives with a hand-over, and the stages that then run."""


@pytest.mark.parametrize(("changes", "mark", "ran"), CASES.values(), ids=CASES)
def test_pass_starts_with_the_first_changed_stage(
    tmp_path: Path, changes: dict[str, str], mark: bool, ran: list[str]
) -> None:
    node = node_with(tmp_path, dict.fromkeys(STAGES, EVERY_BOOT) | {"60-names": READS})
    (tmp_path / "var/lib/trainyard/bundles/b/kinds/head").mkdir()
    if "stage.sh" in changes:
        changes = {"stage.sh": f"root={tmp_path}\n# new\n"}
    assert node.bootstrap().returncode == 0
    assert pass_after(node, "c", changes, mark) == ran


def test_stages_that_read_a_changed_hand_over_run(tmp_path: Path) -> None:
    reads = EVERY_BOOT + ': "$handover/nodes"\n'
    node = node_with(tmp_path, {"40-first": EVERY_BOOT, "60-names": READS, "70-second": reads, "80-third": EVERY_BOOT})
    node.write("var/lib/trainyard/handover/nodes", "one\n")
    assert node.bootstrap().returncode == 0
    node.write("var/lib/trainyard/handover/complete", "two\n")
    assert pass_after(node, "c", {}) == []
    assert node.read("run/trainyard/handover") == "two\n", "a hand-over with the same content counts as read"
    node.write("var/lib/trainyard/handover/nodes", "two\n")
    node.write("var/lib/trainyard/handover/complete", "three\n")
    assert pass_after(node, "d", {}) == ["60-names", "70-second", "80-third"]


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
