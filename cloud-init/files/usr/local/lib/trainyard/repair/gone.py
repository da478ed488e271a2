"""Lost workers: workers that do not respond, although other workers do. Only `answering` uses the network."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from repair.nodes import GONE, NO_SLURMD, Node

_EPIDEMIC_SHARE = 0.2
_EPIDEMIC_SECONDS = 60.0
"""Time without an answer after which workers are lost even if many workers do not answer."""
_SLURMD_SECONDS = 60.0
"""Time after which a worker that answers, but whose slurmd does not respond, is drained. A worker whose slurmd can
respond registers sooner (health/slurm.py)."""
_ROUND_SECONDS = 10.0
"""Longest time that one round adds to a worker's silence. If the head itself was frozen, its clock can jump."""
_CONNECT_SECONDS = 3.0
_CLOSED_PORT = 9
"""The port "discard". No program on a node listens on it or logs connections to it. A refusal counts as an answer."""


@dataclass
class Watch:
    """How long each worker has been silent. All times are in seconds of a monotonic clock.

    Only the time in which other workers answer is counted. If no worker answers, the head's own network has failed, and
    its outage must not end jobs. A worker that has never answered is not lost, because a firewall may drop the packets.
    """

    silent_seconds: float
    heard: set[str] = field(default_factory=set)
    """The workers that have answered."""
    silence: dict[str, float] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    """The workers that were down while they were silent, and have not answered since."""
    unregistered: dict[str, float] = field(default_factory=dict)
    """Time since when a worker answers, although its slurmd does not respond."""
    last: float | None = None

    def record(self, names: Collection[str], answers: Collection[str], now: float) -> None:
        """Add a round. `answers`: the workers that answered."""
        passed = min(now - self.last, _ROUND_SECONDS) if self.last is not None else 0.0
        self.last = now
        self.heard.update(answers)
        self.down.difference_update(answers)
        self.silence = {name: self.silence.get(name, 0.0) + passed for name in names if answers and name not in answers}


def lost(nodes: Mapping[str, Node], watch: Watch) -> Iterator[list[str]]:
    """Yield the arguments of scontrol that set lost workers down, so that Slurm requeues their jobs.

    If more than one worker and more than 20 % of the workers are silent, a short failure of the network is likely, so
    they are set down later. A worker that is already drained keeps its reason.
    """
    silent = {name: seconds for name, seconds in watch.silence.items() if seconds > watch.silent_seconds}
    is_epidemic = len(silent) > max(1, _EPIDEMIC_SHARE * len(nodes))
    for name, node in nodes.items():
        if name not in silent:
            continue
        if "DOWN" in node.slurm.flags:
            watch.down.add(name)
            continue
        if name in watch.down and node.responds:
            # The worker has returned to service without an answer, so a firewall drops the packets.
            watch.heard.discard(name)
        # A worker may have been lost before this service was started. Slurm then knows that it does not respond.
        is_known = name in watch.heard or not node.responds
        is_drained = "DRAIN" in node.slurm.flags
        if not is_known or (is_drained and not node.is_busy) or (is_epidemic and silent[name] <= _EPIDEMIC_SECONDS):
            continue
        reason = node.slurm.reason if is_drained else f"{GONE}no answer for {watch.silent_seconds:.0f} s"
        yield ["update", f"nodename={name}", "state=down", f"reason={reason}"]


def without_slurmd(
    nodes: Mapping[str, Node], answers: Collection[str], watch: Watch, now: float
) -> Iterator[list[str]]:
    """Yield the arguments of scontrol that drain workers that answer, but whose slurmd does not respond.

    Such a worker may be unable to report the cause itself, for example because munge rejects its clock.
    """
    found = {
        name
        for name, node in nodes.items()
        if name in answers
        and node.has_registered
        and not node.responds
        and node.slurm.flags.isdisjoint({"DOWN", "DRAIN"})
    }
    watch.unregistered = {name: watch.unregistered.get(name, now) for name in found}
    for name, since in watch.unregistered.items():
        if now - since > _SLURMD_SECONDS:
            yield ["update", f"nodename={name}", "state=drain", f"reason={NO_SLURMD}"]


def answering(addresses: Mapping[str, str]) -> set[str]:
    """Return the workers that accept or refuse a connection to the port."""
    return asyncio.run(_answering(addresses))


async def _answering(addresses: Mapping[str, str]) -> set[str]:
    answers = await asyncio.gather(*map(_answers, addresses.values()))
    return {name for name, answered in zip(addresses, answers) if answered}  # noqa: B905  (Python 3.10 has no batch)


async def _answers(address: str) -> bool:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(address, _CLOSED_PORT), _CONNECT_SECONDS)
    except ConnectionRefusedError:
        return True
    except (OSError, asyncio.TimeoutError):  # noqa: UP041  (different types in Python 3.10)
        return False
    writer.close()
    return True
