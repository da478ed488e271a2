"""Builds an image for local machines: a builder machine runs the stages, and its disk becomes the image."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
import uuid
from ipaddress import IPv4Interface
from pathlib import Path

from components.node.bake import builder_user_data
from components.plan.plan import ClusterPlan
from components.platforms.local.image import GoldenImage, ensure_image, image_cache
from components.platforms.local.image_build import BuildProgress, Recipe
from components.platforms.local.machine import Hardware, Machine, macs, start_switch
from components.platforms.local.paths import runs_folder
from components.platforms.local.probe import choose
from components.platforms.local.process import run_program, sweep_run
from components.platforms.local.spec import LocalSpec
from trainyard.errors import PlatformError
from trainyard.printable import printable

MARK = "trainyard-bake: "
"""Prefix of the console lines with which the builder reports its progress."""
BUILDING = "baking-"
"""Prefix of an incomplete image's folder."""
_BUILDER = "builder"
_ADDRESS = IPv4Interface("10.77.0.4/20")
"""Any address works, because the builder is the only machine in its private network."""
_MEMORY_MIB = 1024
_SECONDS = 3600.0
_POLL_SECONDS = 0.5
_TAIL_LINES = 25


def report_in(console: str) -> str:
    """Return a console log's last complete report: "done", "failed: ...", a stage's name, or "" if there is none."""
    lines = [line for line in console.splitlines(keepends=True) if MARK in line and line.endswith("\n")]
    return lines[-1].partition(MARK)[2].strip() if lines else ""


def bake_here(plan: ClusterPlan, name: str) -> str:
    """Build the image `name` in the cache if it does not exist, and return the value of `baked_image`.

    Raises PlatformError if the builder fails. After an error or an interruption, no machine, process or file is left.
    """
    recipe = Recipe(suite=plan.platform_spec(LocalSpec).suite)
    ensure_image(recipe)  # before image_cache, because both use the same lock
    with BuildProgress(name) as progress, image_cache(progress) as images:
        if (images / name / "manifest.json").exists():
            return name
        for abandoned in images.glob(f"{BUILDING}*"):
            shutil.rmtree(abandoned)
        # The folder depends only on the name, so the next bake can end the processes of a bake that was killed.
        run = runs_folder() / name
        work = Path(tempfile.mkdtemp(prefix=BUILDING, dir=images))
        try:
            sweep_run(run)
            _build(plan, recipe, run, work, progress)
            work.rename(images / name)
        finally:
            sweep_run(run)
            shutil.rmtree(work, ignore_errors=True)
    return name


def _build(plan: ClusterPlan, recipe: Recipe, run: Path, work: Path, progress: BuildProgress) -> None:
    """Create the image's files in `work`. The image has the same name as the `run` folder."""
    begin, base = time.monotonic(), ensure_image(recipe)
    progress.phase("start the builder")
    start_switch(run)
    machine, cards = Machine(run=run, name=_BUILDER), macs(run.name, _BUILDER)
    machine.make_disk(base, uuid.uuid4().hex, cards, _ADDRESS, builder_user_data(plan))
    hardware = Hardware(
        accelerator=choose(plan.platform_spec(LocalSpec).accelerator, base.kernel).accelerator,
        vcpus=min(2, os.cpu_count() or 1),
        memory_mib=_MEMORY_MIB,
        ssh_port=None,
        niceness=0,
    )
    machine.start(base, hardware, cards)
    _wait(machine, progress)
    progress.phase("write the disk")
    made = GoldenImage(work)
    convert = ("qemu-img", "convert", "-O", "qcow2", str(machine.disk), str(made.disk))
    run_program(run.name, "install the qemu-utils package", *convert)
    shutil.copyfile(base.kernel, made.kernel)
    manifest = {
        "name": run.name,
        "base": base.folder.name,
        "suite": recipe.suite,
        "seconds": round(time.monotonic() - begin),
    }
    (work / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


def _wait(machine: Machine, progress: BuildProgress) -> None:
    """Wait until the builder is off. Raises PlatformError if it has not completed the stages."""
    deadline = time.monotonic() + _SECONDS
    shown = ""
    while True:
        running = machine.pid is not None
        console = machine.console_output(0)
        report = report_in(console)
        if report not in {"", shown}:
            shown = report
            progress.phase(report)
        if report == "done" and not running:
            return
        failed = report.startswith("failed")
        if failed or not running or time.monotonic() > deadline:
            ended = "the builder did not finish in time" if running else "the builder stopped early"
            reason = report if failed else ended
            tail = printable("\n  ".join(console.splitlines()[-_TAIL_LINES:])) or "(nothing)"
            raise PlatformError(
                f"{machine.run.name}: {reason}. No image was stored. Its console ended with:\n  {tail}\n"
                "Fix: correct the cause, for example an unreachable package archive, and run `yard bake` again"
            )
        time.sleep(_POLL_SECONDS)
