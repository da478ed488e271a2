"""New stacks of virtual machines on this computer."""

from __future__ import annotations

from yard.init.created import created_section
from yard.init.known import Known, Section, Starter


def section(known: Known) -> Section:
    """Return the cluster section."""
    return created_section(known, {"provider": "local"}, storage={"kind": "head_nfs"})


STARTER = Starter(keys=("machine", "count"), section=section)
