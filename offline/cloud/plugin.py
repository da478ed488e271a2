"""The plugin process of a simulated cloud."""

from __future__ import annotations

from collections.abc import Callable

from offline.cloud.azure import Azure
from offline.cloud.cloud import Cloud
from offline.cloud.gcp import Gcp
from offline.cloud.provider import CloudProvider
from offline.engine import EngineLog
from offline.serving import engine_address, serve
from offline.stopping import Stop

CLOUDS: dict[str, Callable[[], Cloud]] = {"azure-native": Azure, "gcp": Gcp}
_END_SECONDS = 3.0


def main(package: str, arguments: list[str]) -> None:
    """Serve the engine that started this process. Does not return."""
    stop = Stop()
    provider = CloudProvider(CLOUDS[package](), EngineLog(engine_address(arguments)), stop)
    serve(provider, lambda: stop.finish(_END_SECONDS))
