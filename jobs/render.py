"""The sbatch script of a job: Slurm's header, what is particular to this job, and job.sh. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from jobs.loader import LoadedJob
from jobs.placement import Placement
from jobs.spec import variables

SCRIPT = "job.sbatch"
RUN_LINES = "run.sh"
_BODY = Path(__file__).parent / "job.sh"
_BODY_START = "# --- from here on"
_WARNING = "  # Slurm's warning before the time limit is for work that handles it; other work goes on."
_LONGEST_WARNING = 300
"""Slurm tells a job that its time is running out this many seconds before, or a quarter of a short limit."""


def shell_word(text: str) -> str:
    """Quote `text` for bash; only the variables that yard provides stay variables."""
    parts: list[str] = []
    end = 0
    for start, stop, name in variables(text):
        parts += [shlex.quote(text[end:start]) if start > end else "", f'"${name}"']
        end = stop
    if end < len(text) or not parts:
        parts.append(shlex.quote(text[end:]))
    return "".join(parts)


def render_files(job: LoadedJob, placement: Placement) -> dict[str, str]:
    """Return what travels to the cluster, by file name: the script and the workload or shell lines."""
    files = {SCRIPT: render_script(job, placement)}
    if job.workload is not None:
        files[job.workload.name] = job.workload.read_text()
    if job.spec.run is not None:
        files[RUN_LINES] = job.spec.run.rstrip("\n") + "\n"
    return files


def render_script(job: LoadedJob, placement: Placement) -> str:
    """Return the whole sbatch script."""
    ranks = placement.nodes * placement.tasks_per_node
    body = _BODY.read_text()
    size = f"{_count(placement.nodes, 'node')}, {_count(ranks, 'rank')}"
    return "\n".join(
        (
            "#!/usr/bin/env bash",
            f"# Job {job.spec.name}: {size}, started by {job.spec.launcher}.",
            "# Written by yard. It runs in its own folder, and `sbatch job.sbatch` there runs it again.",
            *(f"#SBATCH --{option}" for option in _header(job, placement)),
            "set -euo pipefail",
            "",
            *_particulars(job, placement),
            "",
            body[body.index(_BODY_START) :],
        )
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _header(job: LoadedJob, placement: Placement) -> list[str]:
    spec = job.spec
    options = [
        f"job-name={spec.name}",
        f"partition={placement.group}",
        f"nodes={placement.nodes}",
        f"ntasks-per-node={1 if spec.launcher == 'torchrun' else placement.tasks_per_node}",
    ]
    if spec.cpus_per_task is not None:
        options.append(f"cpus-per-task={spec.cpus_per_task}")
    if placement.gpus_per_node:
        options.append(f"gpus-per-node={placement.gpus_per_node}")
    if placement.whole_nodes:
        options.append("exclusive")
    options.append(f"mem={spec.memory_per_node or 0}")
    days, rest = divmod(spec.seconds, 86400)
    clock = f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return [
        *options,
        f"time={days}-{clock}" if days else f"time={clock}",
        "requeue",
        "open-mode=append",
        f"signal=B:USR2@{min(_LONGEST_WARNING, spec.seconds // 4)}",
        "output=job.log",
    ]


def _particulars(job: LoadedJob, placement: Placement) -> list[str]:
    spec = job.spec
    torchrun = spec.launcher == "torchrun"
    step = [f"--cpus-per-task={spec.cpus_per_task}"] if spec.cpus_per_task is not None else []
    floor = "" if placement.busbw_floor is None else f"{placement.busbw_floor:g}"
    exports = {**placement.env, "BUSBW_FLOOR": floor, **spec.env}
    return [
        f"readonly gpus_per_node={placement.gpus_per_node} tasks_per_node={placement.tasks_per_node}",
        f"readonly ranks_per_task={placement.tasks_per_node if torchrun else 1} retries={spec.retries}",
        f"readonly checkpoint_dir={shlex.quote(spec.checkpoint_dir or '')}",
        # srun does not inherit cpus-per-task from sbatch.
        f"readonly step_options=({' '.join(step)})",
        "",
        "work() {",
        *(f"  export {name}={shell_word(value)}" for name, value in exports.items()),
        *_command(job),
        "}",
    ]


def _command(job: LoadedJob) -> Sequence[str]:
    spec = job.spec
    args = [shell_word(arg) for arg in spec.args]
    if job.workload is None:
        # A shell cannot trap what it was started with as ignored, so it must be the one that ignores.
        start = f'exec bash -euo pipefail -c \'trap "" USR2; source "$0"\' "$RUN_DIR/{RUN_LINES}"'
        return [_WARNING, _line([start, *args])]
    file = f'"$RUN_DIR/"{shlex.quote(job.workload.name)}'
    if spec.launcher == "srun":
        return [_WARNING, "  trap '' USR2", _line([f"exec python3 -u {file}", *args])]
    return [
        _WARNING,
        "  trap '' USR2",
        "  exec python3 -u -m torch.distributed.run \\",
        '    --nnodes="$NNODES" --nproc-per-node="$TASKS_PER_NODE" --node-rank="$NODE_RANK" \\',
        '    --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" --max-restarts=0 \\',
        f"  {_line([file, *args])}",
    ]


def _line(words: Sequence[str]) -> str:
    return "  " + " ".join(words)
