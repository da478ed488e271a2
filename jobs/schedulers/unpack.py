"""How the head unpacks a job's tar from standard input."""

from __future__ import annotations

UNPACK = "(umask 077; tar -x)"
"""The job's folder gets mode 0700: other users must not read its scripts, logs and secrets. The umask ends with the
subshell, because Slurm would pass it on to the job, whose own files may be meant for others."""
