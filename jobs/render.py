"""The script of a job, for Slurm or without a scheduler: what is particular to it, then what never changes. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from jobs.container import SSH_PORT
from jobs.direct import runner_files
from jobs.launcher import Launcher, Program, Source, Tasks, launcher
from jobs.loader import LoadedJob
from jobs.placement import Placement
from jobs.rules import variables
from jobs.sbatch import header, warning_seconds
from jobs.secrets import SECRETS_FILE
from jobs.wrap import CARDS, enter_lines, pyxis_options

RUN_LINES = "run.sh"
SETUP_LINES = "setup.sh"
_HERE = Path(__file__).parent
_WARNING = "# The warning before the time limit is for work that handles it; other work goes on."
_CALLED = {
    "torchrun.sh": ("start_torchrun",),
    "forward.sh": ("names_for_ranks", "write_deepspeed_env"),
    "docker.sh": ("docker_ready",),
    "transport.sh": ("use_transport",),
}
"""Parts that only some launchers need, by the functions of theirs that the work calls."""
_BY_SSH = ("deepspeed-pdsh", "neox")
"""Launchers whose ranks come by ssh and so are not in the sight of Slurm, nor in the container of the launcher."""


def script_name(placement: Placement) -> str:
    """Return the file name of the job's script."""
    return "job.sbatch" if placement.scheduler == "slurm" else "job.sh"


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
    """Return what travels to the cluster, by file name: the script, and the files of the job."""
    spec = job.spec
    script = render_script(job, placement)
    files = {script_name(placement): script, **spec.files}
    if placement.scheduler == "none":
        files |= runner_files(job, placement, script)
    if job.workload is not None:
        files[job.workload.name] = job.workload.read_text()
    for name, lines in ((RUN_LINES, spec.run), (SETUP_LINES, spec.setup)):
        if lines is not None:
            files[name] = lines.rstrip("\n") + "\n"
    return files


def render_script(job: LoadedJob, placement: Placement) -> str:
    """Return the whole script."""
    chosen = launcher(job.spec.launcher)
    particulars = _particulars(job, placement, chosen)
    slurm = placement.scheduler == "slurm"
    called = [name for name, functions in _CALLED.items() if _calls(particulars, functions)]
    parts = [*called, "task.sh", "slurm.sh" if slurm else "direct.sh"]
    return "\n".join((*_opening(job, placement, chosen), "", *particulars, "", *map(_body, parts))).rstrip("\n") + "\n"


def _calls(lines: Sequence[str], functions: Sequence[str]) -> bool:
    return any(function in line for line in lines for function in functions)


def _body(name: str) -> str:
    text = (_HERE / name).read_text()
    return text[text.index("\n# --- ") + 1 :]


def _opening(job: LoadedJob, placement: Placement, chosen: Launcher) -> list[str]:
    ranks = placement.nodes * placement.tasks_per_node
    size = f"{_count(placement.nodes, 'node')}, {_count(ranks, 'rank')}"
    lines = ["#!/usr/bin/env bash", f"# Job {job.spec.name}: {size}, started by {chosen.title}."]
    told = (("Needs", job.spec.software), ("Unproved", job.spec.unproved))
    lines += [f"# {word}: {line}" for word, text in told for line in (text or "").splitlines()]
    if placement.scheduler == "slurm":
        lines.append("# Written by yard. It runs in its own folder, and `sbatch job.sbatch` there runs it again.")
        lines += [f"#SBATCH --{option}" for option in header(job.spec, placement, chosen)]
    else:
        lines.append("# Written by yard. It runs in its own folder; without a scheduler, runner/ starts its tasks.")
    return [*lines, "set -euo pipefail"]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _particulars(job: LoadedJob, placement: Placement, chosen: Launcher) -> list[str]:
    spec = job.spec
    floor = "" if placement.busbw_floor is None else f"{placement.busbw_floor:g}"
    exports = {**placement.env, "BUSBW_FLOOR": floor, **spec.env}
    inner_ssh = spec.container is not None and spec.launcher in _BY_SSH
    lines = [f"readonly workdir={shlex.quote(spec.workdir or '')}"]
    library = placement.transport.library_path
    if placement.scheduler == "slurm":
        lines += _slurm_particulars(job, placement, chosen)
    elif placement.visible_gpus is not None:
        lines.append(f"export CUDA_VISIBLE_DEVICES={placement.visible_gpus}")
    work = chosen.lines(_program(job, inner_ssh=inner_ssh))
    if _calls(work, _CALLED["forward.sh"]):
        lines.append(f"readonly own_env=({' '.join(sorted(exports))})")
    return [
        *lines,
        "",
        *enter_lines(spec.container, placement, script_name(placement), inner_ssh=inner_ssh),
        "",
        "work() {",
        *([f"  use_transport {shlex.quote(library)}"] if library is not None else []),
        *(f"  export {name}={shell_word(value)}" for name, value in exports.items()),
        *([f'  source "$RUN_DIR/{SECRETS_FILE}"'] if spec.secrets else []),
        f"  {_WARNING}",
        # Shell lines see to it by themselves: a shell cannot trap what it was started with as ignored.
        *(["  trap '' USR2"] if spec.source is not Source.RUN else []),
        *(f"  {line}" for line in work),
        "}",
    ]


def _slurm_particulars(job: LoadedJob, placement: Placement, chosen: Launcher) -> list[str]:
    spec = job.spec
    ranks_per_task = 1 if chosen.tasks is Tasks.RANK else placement.tasks_per_node
    leads, strays = int(chosen.tasks is Tasks.FIRST), int(spec.launcher in _BY_SSH)
    exports: list[str] = []
    # A job that can go on with fewer nodes must not be ended for one.
    step = ["--no-kill", "--kill-on-bad-exit=0"] if chosen.elastic else ["--kill-on-bad-exit=1"]
    if spec.cpus_per_task is not None:
        # srun does not inherit it from sbatch.
        step.append(f"--cpus-per-task={spec.cpus_per_task}")
    if spec.mpi is not None:
        step.append(f"--mpi={spec.mpi}")
    if spec.container is not None and spec.container.runtime == "pyxis":
        step += pyxis_options(spec.container, placement)
        exports = [*CARDS]
    return [
        *exports,
        f"readonly gpus_per_node={placement.gpus_per_node} tasks_per_node={placement.tasks_per_node}",
        f"readonly ranks_per_task={ranks_per_task} leads={leads} strays={strays}",
        f"readonly retries={spec.retries} chain={spec.chain} checkpoint_dir={shlex.quote(spec.checkpoint_dir or '')}",
        f"readonly heartbeat={spec.heartbeat_seconds or 0} warning_seconds={warning_seconds(spec)}",
        f"readonly step_options=({' '.join(step)})",
    ]


def _program(job: LoadedJob, *, inner_ssh: bool) -> Program:
    spec = job.spec
    if spec.source is Source.RUN:
        start = f'bash --norc -euo pipefail -c \'trap "" USR2; source "$0"\' "$RUN_DIR/{RUN_LINES}"'
    elif job.workload is not None:
        start = f'"$RUN_DIR/"{shlex.quote(job.workload.name)}'
    else:
        start = shlex.quote(spec.script or "")
    return Program(
        python=spec.source is not Source.RUN,
        words=(start, *map(shell_word, spec.args)),
        min_nodes=spec.min_nodes or 1,
        ssh_port=SSH_PORT if inner_ssh else None,
    )
