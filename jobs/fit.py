"""Whether a checked job can run on a cluster's kind: its scheduler, and the memory of its GPUs. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from components.errors import Problem
from jobs.launcher import launcher
from jobs.spec import JobSpec


def scheduler_problems(spec: JobSpec, scheduler: str) -> Iterator[Problem]:
    """Yield what the job asks of a scheduler that the cluster does not have."""
    chosen = launcher(spec.launcher)
    if scheduler not in chosen.schedulers:
        rule = f"{spec.launcher} needs a scheduler of the kind {' or '.join(chosen.schedulers)}; this cluster has none"
        yield Problem(path="launcher", rule=rule, fix="use launcher deepspeed-pdsh or deepspeed-no-ssh")
    runtime = spec.container.runtime if spec.container is not None else None
    if scheduler == "none":
        if runtime == "pyxis":
            rule = "pyxis is a part of Slurm, which this cluster does not run"
            yield Problem(path="container.runtime", rule=rule, fix="use docker or enroot")
        # Nobody holds a job to these where there is no scheduler.
        for key in ("cpus_per_task", "memory_per_node", "mpi"):
            if getattr(spec, key) is not None:
                yield Problem(path=key, rule="only a scheduler can see to it; this cluster has none", fix="remove it")
        if spec.chain > 1:
            rule = "without a scheduler a job is started again at its time limit anyway"
            yield Problem(path="chain", rule=rule, fix="remove it")
    elif runtime == "docker":
        rule = "docker starts containers outside of Slurm's steps, which would neither limit nor end them"
        yield Problem(path="container.runtime", rule=rule, fix="use enroot or pyxis, or a stack with scheduler: none")


def memory_problem(spec: JobSpec, gpus_per_node: int, gpu_type: str | None) -> Problem | None:
    """Return why the job's model cannot fit, as a sum; None when it can, or nobody knows."""
    if spec.model is None:
        return None
    if gpus_per_node == 0 or gpu_type == "fake":
        rule = f"{spec.model} wants real GPUs, and the job's nodes have none"
        return Problem(path="model", rule=rule, fix="use a stack with GPUs, or the job's smoke size with --smoke")
    from jobs.sizing.advice import refusal  # noqa: PLC0415  (sums that few jobs need)
    from jobs.sizing.gpus import SizeError  # noqa: PLC0415
    from jobs.sizing.memory import Machines  # noqa: PLC0415

    try:
        machines = Machines(nodes=spec.nodes, gpus_per_node=gpus_per_node)
        why = refusal(spec.model, gpu_type, machines, spec.layout)
    except SizeError as error:
        return Problem(path="layout", rule=f"cannot be sized: {error}", fix="`yard size` shows layouts that can")
    return None if why is None else Problem(path="model", rule=why, fix="use more nodes; `yard size` shows how")
