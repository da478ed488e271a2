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
for id; do if {{ read -r line <"$id/{RECORD}"; }} 2>/dev/null; then printf '%s %s\\n' "$id" "$line"; fi; done
"""


def with_commits(remote: Remote, jobs: Iterable[Job]) -> list[dict[str, Any]]:
    """Return the jobs in the format that `--json` prints, with the recorded commit and whether files had changed.

    Both values are None for a job without a record.
    """
    rows = [job.as_json() for job in jobs]
    words = [f"{remote.stack.cluster.shared_path}/jobs/.ids", *(str(row["id"]) for row in rows)]
    printed = remote.run(shlex.join(["bash", "-c", _READ, "commits", *words])) if rows else ""
    records = {int(match[1]): json.loads(match[2]) for match in re.finditer(r"(?m)^(\d+) (\{.*\})$", printed)}
    for row in rows:
        record = records.get(row["id"], {})
        row |= {"commit": record.get("commit"), "modified": record.get("modified")}
    return rows
