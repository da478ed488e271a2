"""The recorded commits of jobs."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable
from typing import Any

from yard.run.queue import Job
from yard.stack.remote import Remote
from yard.tree.snapshot import RECORD

_READ = f"""
cd "$1" 2>/dev/null || exit 0
shift
while (($#)); do
  for run in ".ids/$1" "$2"; do
    if {{ read -r line <"$run/{RECORD}"; }} 2>/dev/null; then
      printf '%s %s\\n' "$1" "$line"
      break
    fi
  done
  shift 2
done
"""
"""Prints the record of each job. The arguments are the folder of all jobs, then each job's number and run folder. An
element of a Slurm array has no link in .ids."""


def with_commits(remote: Remote, jobs: Iterable[Job]) -> list[dict[str, Any]]:
    """Return the jobs in the format that `--json` prints, with the recorded commit and whether files had changed.

    Both values are None for a job without a record.
    """
    rows = [job.as_json() for job in jobs]
    folder = f"{remote.stack.cluster.shared_path}/jobs"
    words = [folder]
    for row in rows:
        run_dir = str(row["run_dir"])
        # Other users choose the working directories of their jobs.
        words += [str(row["id"]), run_dir if run_dir.startswith(f"{folder}/") else "-"]
    printed = remote.run(shlex.join(["bash", "-c", _READ, "commits", *words])) if rows else ""
    records = {int(match[1]): json.loads(match[2]) for match in re.finditer(r"(?m)^(\d+) (\{.*\})$", printed)}
    for row in rows:
        record = records.get(row["id"], {})
        row |= {"commit": record.get("commit"), "modified": record.get("modified")}
    return rows
