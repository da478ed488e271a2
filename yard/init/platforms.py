"""The platforms that `yard init` supports."""

from __future__ import annotations

from yard.init import azure, gcp, hosts, local
from yard.init.known import Starter

STARTERS: dict[str, Starter] = {
    "azure": azure.STARTER,
    "gcp": gcp.STARTER,
    "hosts": hosts.STARTER,
    "local": local.STARTER,
}
