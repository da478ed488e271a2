"""The warning about machines with an older image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from components.cluster.older_images import older_images_message
from components.plan.plan import ClusterPlan
from components.stackfile.read import read_stack
from tests.components.platforms.recording import stack_text


def plan(folder: Path, **edits: Any) -> ClusterPlan:
    file = folder / "stack.yaml"
    file.write_text(stack_text("local", **edits))
    return read_stack(file).plan


def test_machines_with_the_new_image_are_not_listed(tmp_path: Path) -> None:
    running = {"yard-head": "new", "yard-gpu-0": "NEW", "yard-gpu-1": ""}
    assert older_images_message(plan(tmp_path), running, "new", "local") == ""
    assert older_images_message(plan(tmp_path), {}, "new", "local") == ""


def test_older_machines_are_listed_with_their_commands(tmp_path: Path) -> None:
    running = {"yard-head": "older", "yard-gpu-0": "old", "yard-gpu-1": "new"}
    text = older_images_message(plan(tmp_path), running, "new", "local")
    assert text.splitlines() == [
        "these machines keep their older image, because `pulumi up` does not replace a machine for a new image: "
        "yard-head, yard-gpu-0",
        "  image of new machines: new",
        "  yard-head: older",
        "  yard-gpu-0: old",
        "To replace them, run `yard roll gpu`",
        "To replace yard-head, wait until no jobs are running (`yard ps`), then run "
        "`TRAINYARD_ROLL=yard-head pulumi up -s local`",
    ]


def test_without_slurm_the_command_names_the_machines(tmp_path: Path) -> None:
    text = older_images_message(plan(tmp_path, scheduler="none"), {"yard-gpu-0": "old"}, "new", "local")
    assert text.endswith("then run `TRAINYARD_ROLL=yard-gpu-0 pulumi up -s local`")
