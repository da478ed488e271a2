"""DeepSpeed's launcher on the first node, which reaches the others by pdsh over ssh."""

from __future__ import annotations

from jobs.launcher import Launcher, Program, Tasks


def _lines(program: Program) -> list[str]:
    port = [f"  --ssh_port {program.ssh_port} \\"] if program.ssh_port is not None else []
    return [
        # pdsh hands on NCCL*, PYTHON* and little else; this file carries the rest.
        "write_deepspeed_env",
        'exec deepspeed --hostfile "$HOSTFILE" --launcher pdsh \\',
        *port,
        # Without it DeepSpeed takes the first address of the first host, which may be no private one.
        '  --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \\',
        f"  {program.file}",
    ]


LAUNCHER = Launcher(title="deepspeed over pdsh", tasks=Tasks.FIRST, lines=_lines, runtimes=frozenset({"docker"}))
