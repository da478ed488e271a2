"""Closed partitions: no job starts in them, and waiting jobs stay queued.

Facts about slurmctld (slurmctld/read_config.c, partition_mgr.c and controller.c of Slurm 22.05.8, 23.11.4 and 24.11.5,
read 2026-11-27): a restart and `scontrol reconfigure` give each partition its state in slurm.conf, which is UP, because
neither `-R` nor ReconfigFlags=KeepPartState is set. The service therefore compares the states in each round, and cannot
distinguish a restart from a person who opens a closed partition. A job that starts in between continues. Waiting jobs
start in a DRAIN partition, so it is closed too. A partition that a person has set DOWN or INACTIVE stays so.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

_PARTITION = re.compile(r"(?m)^PartitionName=(\S+) .* State=(\S+)")
_STARTS_JOBS = frozenset({"UP", "DRAIN"})


def write_atomically(path: Path, text: str) -> None:
    """Replace a file that every user may read. After a crash, it has either the old or the new content."""
    new = path.with_name(f"{path.name}.new")
    with new.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.chmod(0o644)
    new.replace(path)


class Closed:
    """The partitions that this service has set down, stored in `path`.

    The file is a JSON object: partition -> [reason, the state that the partition had before].
    """

    def __init__(self, path: Path, control: Callable[..., str | None]) -> None:
        self._path, self._control = path, control
        self._record: dict[str, list[str]] = {}
        try:
            self._record = json.loads(path.read_text())
        except FileNotFoundError:
            pass
        except ValueError as error:
            sys.stderr.write(f"{path}: {error}. Partitions that are down stay down\n")

    def keep(self, wanted: Mapping[str, str]) -> None:
        """Set the partitions in `wanted` (partition -> reason) down, and set the service's other ones up again."""
        shown = self._control("-o", "show", "partition") if wanted or self._record else None
        if shown is None:
            return
        states: dict[str, str] = dict(_PARTITION.findall(shown))
        ours = {name: before for name, (_, before) in self._record.items() if states.get(name) == "DOWN"}
        # slurmctld has forgotten the state of the partitions in the record that are UP.
        known = {name: before for name, (_, before) in self._record.items() if states.get(name) == "UP"}
        opened = {name: known.get(name, state) for name, state in states.items() if state in _STARTS_JOBS}
        rows = {name: [reason, (ours | opened)[name]] for name, reason in wanted.items() if name in ours | opened}
        to_open = {name: before for name, before in ours.items() if name not in wanted}
        # The record is written first, so that a crash leaves no partition down that is not in the record.
        self._save(rows | {name: self._record[name] for name in to_open})
        for name in opened.keys() & wanted.keys():
            self._control("update", f"partitionname={name}", "state=down")
        failed = {
            name
            for name, before in to_open.items()
            if self._control("update", f"partitionname={name}", f"state={before.lower()}") is None
        }
        self._save(rows | {name: self._record[name] for name in failed})

    def _save(self, record: dict[str, list[str]]) -> None:
        if record != self._record:
            write_atomically(self._path, json.dumps(record) + "\n")
            self._record = record
