"""A fake scontrol with nodes and reservations in the format of Slurm 24.11."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from repair.service import Service, read_site

ADDRESSES = {"a-0": "10.0.0.1", "a-1": "10.0.0.2", "a-2": "10.0.0.3"}


def parameters(spares: int) -> str:
    return json.dumps({"silent_seconds": 15, "groups": {"a": {"spares": spares, "nodes": ADDRESSES}}})


@dataclass
class FakeSlurm:
    """State and reason of each node, nodes that have not registered, and the node list of each reservation."""

    states: dict[str, str] = field(default_factory=lambda: dict.fromkeys(ADDRESSES, "IDLE"))
    reasons: dict[str, str] = field(default_factory=dict)
    unregistered: set[str] = field(default_factory=set)
    held: dict[str, str] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    def __call__(self, *arguments: str) -> str | None:
        match arguments:
            case ("-o", "show", "node"):
                return "".join(map(self._line, self.states))
            case ("-o", "show", "reservation"):
                rows = (
                    f"ReservationName={name} StartTime=x Nodes={nodes} NodeCnt=1\n" for name, nodes in self.held.items()
                )
                return "".join(rows) or "No reservations in the system\n"
            case ("show", "hostnames", nodes):
                return nodes.replace(",", "\n")
        self.calls.append(" ".join(arguments))
        values = dict(word.split("=", 1) for word in arguments if "=" in word)
        if arguments[0] == "delete":
            del self.held[values["reservationname"]]
        elif "reservationname" in values:
            self.held[values["reservationname"]] = values["nodes"]
        else:
            self.states[values["nodename"]] = {"down": "DOWN", "drain": "IDLE+DRAIN"}[values["state"]]
            self.reasons[values["nodename"]] = values.get("reason", "")
        return ""

    def _line(self, name: str) -> str:
        boot = "None" if name in self.unregistered else "2026-11-22T10:00:00"
        reason = f" Reason={self.reasons[name]} [root@2026-11-22T10:00:00]" if self.reasons.get(name) else ""
        return f"NodeName={name} Arch=x86_64 State={self.states[name]} ThreadsPerCore=1 BootTime={boot}{reason}\n"


@dataclass
class Head:
    """The repair service, its simulated clock, and the workers that respond."""

    folder: Path
    spares: int = 1
    slurm: FakeSlurm = field(default_factory=FakeSlurm)
    alive: set[str] = field(default_factory=lambda: set(ADDRESSES))
    now: float = 1000.0
    service: Service = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.service = Service(
            read_site(parameters(self.spares)),
            state=self.folder,
            control=self.slurm,
            answering=self.answering,
        )

    def answering(self, addresses: Mapping[str, str]) -> set[str]:
        return self.alive & addresses.keys()

    def run(self, seconds: float = 3.0) -> list[str]:
        """Run the service for `seconds` on its clock. Return the calls that change Slurm."""
        self.slurm.calls.clear()
        end = self.now + seconds
        while self.now < end:
            self.now += 3
            self.service.run_once(self.now, self.now)
        return list(self.slurm.calls)
