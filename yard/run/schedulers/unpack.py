"""Unpacks a job's tar archive on the head."""

from __future__ import annotations

import shlex


def unpack(name: str) -> str:
    """Return shell code that unpacks stdin into the folder `name`. If unpacking fails, the code removes the folder.

    The folder has mode 0700, because other users must not read its scripts, logs and secrets. The umask 077 applies
    only in a subshell, because Slurm uses the umask at submission for files that the job writes. The file `run-id`
    contains a random number, which the launcher torchrun-elastic uses as a secret.
    """
    final, partial = shlex.quote(name), shlex.quote(f"{name}.part")
    read = f"mkdir {partial}; tar -xC {partial} --strip-components=1 || {{ rm -rf {partial}; exit 1; }}"
    run_id = f"od -An -N16 -tx8 /dev/urandom | tr -d ' \\n' >{partial}/run-id"
    return f"(umask 077; {read}; {run_id}); mv -T {partial} {final}"
