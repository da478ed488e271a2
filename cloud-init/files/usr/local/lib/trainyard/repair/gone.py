"""Lost nodes: workers that no longer respond. All functions are pure, except for `answering`."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from repair.nodes import GONE, Node

RETURN_SECONDS = 20.0
"""Time for which a lost node must answer before it returns to service without a reboot."""
_EPIDEMIC_SHARE = 0.2
_CONNECT_SECONDS = 3.0
_CLOSED_PORT = 9
"""The port "discard". No program on a node listens on it or logs connections to it. A refusal counts as an answer."""


@dataclass
class Watch:
    """The workers that answer. All times are in seconds of a monotonic clock.

    A worker that has never answered is not lost, because a firewall may drop the packets.
    """

    silent_seconds: float
    heard: dict[str, float] = field(default_factory=dict)
    """Time of the last answer."""
    since: dict[str, float] = field(default_factory=dict)
    """Start of the period in which the worker has answered without a gap of more than `silent_seconds`."""

    def record(self, answers: Collection[str], now: float) -> None:
        """Add the workers that answered."""
        for name in answers:
            if now - self.heard.get(name, float("-inf")) > self.silent_seconds:
                self.since[name] = now
            self.heard[name] = now

    def is_silent(self, name: str, now: float) -> bool:
        return name in self.heard and now - self.heard[name] > self.silent_seconds

    def is_back(self, name: str, now: float) -> bool:
        return name in self.heard and now == self.heard[name] and now - self.since[name] > RETURN_SECONDS


def lost(nodes: Mapping[str, Node], watch: Watch, now: float) -> Iterator[list[str]]:
    """Yield the arguments of scontrol that set lost nodes down, so that Slurm requeues their jobs.

    If more than one node and more than 20 % of the nodes are silent, the head's network is the more likely cause, so no
    node is set down, and SlurmdTimeout applies. A node that is already drained keeps its reason.
    """
    silent = [nodes[name] for name in nodes if watch.is_silent(name, now)]
    if len(silent) > max(1, _EPIDEMIC_SHARE * len(nodes)):
        return
    for node in silent:
        is_drained = "DRAIN" in node.slurm.flags
        if "DOWN" not in node.slurm.flags and (node.is_busy or not is_drained):
            reason = node.slurm.reason if is_drained else f"{GONE}no answer for {watch.silent_seconds:.0f} s"
            yield ["update", f"nodename={node.name}", "state=down", f"reason={reason}"]


def returned(
    nodes: Mapping[str, Node], watch: Watch, out_since: Mapping[str, float], now: float
) -> Iterator[list[str]]:
    """Yield the arguments of scontrol that return lost nodes to service if they answer again and have not rebooted.

    Nodes that have rebooted are returned to service by the stage 90-health. `out_since`: time in seconds since 1970 at
    which each node left service.
    """
    for name, node in nodes.items():
        rebooted = node.boot > out_since.get(name, 0.0)
        if node.is_lost and not rebooted and "NOT_RESPONDING" not in node.slurm.flags and watch.is_back(name, now):
            yield ["update", f"nodename={name}", "state=resume"]


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
