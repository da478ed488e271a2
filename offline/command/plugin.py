"""The plugin `command`, put together."""

from __future__ import annotations

from offline.command import VERSION
from offline.command.commands import Command
from offline.command.copy import CopyToRemote
from offline.command.inputs import LOCAL_COMMAND, REMOTE_COMMAND
from offline.command.link import Links
from offline.command.local import LocalRun, LocalRunner
from offline.command.recording import RecordedCopy, Recorder
from offline.command.recording import wanted as recording_wanted
from offline.command.remote import RemoteRunner
from offline.engine import EngineLog
from offline.provider import Package, Provider
from offline.resources import Resource
from offline.serving import engine_address, serve
from offline.stopping import Stop

_END_SECONDS = 3.0
"""Commands that ignore a polite end are killed sooner than this, and the engine itself waits 5 s."""


def provider(log: EngineLog, stop: Stop, links: Links) -> Provider:
    """Return the provider with every resource and function that the stand-in knows."""
    local = LocalRunner()
    recording = recording_wanted()
    resources: dict[str, Resource] = {
        "command:remote:Command": Command(REMOTE_COMMAND, Recorder() if recording else RemoteRunner(links)),
        "command:remote:CopyToRemote": RecordedCopy() if recording else CopyToRemote(links),
        "command:local:Command": Command(LOCAL_COMMAND, Recorder() if recording else local),
    }
    return Provider(Package("command", VERSION, resources, {"command:local:run": LocalRun(local)}), log, stop)


def main(arguments: list[str]) -> None:
    """Serve the engine that started this process, until it ends."""
    stop, links = Stop(), Links()

    def close() -> None:
        stop.finish(_END_SECONDS)
        links.close()

    serve(provider(EngineLog(engine_address(arguments)), stop, links), close)
