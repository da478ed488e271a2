"""The systemd units and drop-ins of the nodes."""

from __future__ import annotations

import re

from trainyard import checkout

UNITS = checkout.ROOT / "cloud-init/files/etc/systemd/system"
_STOPS_WITH_MUNGED = re.compile(r"^(Requires|Requisite|BindsTo|PartOf)=.*\bmunge\b", re.M)


def test_no_service_stops_with_munged() -> None:
    files = [file for file in UNITS.rglob("*") if file.suffix in {".conf", ".service", ".timer"}]
    assert UNITS / "slurmd.service.d/trainyard.conf" in files
    assert [file.name for file in files if _STOPS_WITH_MUNGED.search(file.read_text())] == []
