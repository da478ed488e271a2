"""gpt-neox's deepy.py on the first node, in a checkout of gpt-neox (`workdir`); `script` is its train.py.

deepy.py hands MASTER_ADDR on to DeepSpeed, and without a host file it would train on one node and not say so.
"""

from __future__ import annotations

from jobs.launcher import Launcher, Program, Source, Tasks


def _lines(program: Program) -> list[str]:
    return [
        "write_deepspeed_env",
        # Ranks that come by srun would inherit them, and take this one's place.
        "unset RANK LOCAL_RANK NODE_RANK",
        'export DLTS_HOSTFILE="$HOSTFILE"',
        '[[ -s $HOSTFILE ]] || { say "there is no host file $HOSTFILE"; exit 2; }',
        f"exec python3 -u ./deepy.py {program.file}",
    ]


LAUNCHER = Launcher(
    title="gpt-neox's deepy.py",
    tasks=Tasks.FIRST,
    lines=_lines,
    starts=frozenset({Source.SCRIPT}),
    runtimes=frozenset({"docker"}),
)
