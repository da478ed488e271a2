"""Selects the pairs of nodes to measure, and finds slow nodes from the results. All functions are pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

Pair = tuple[str, str]

MAX_FAULTY = 0.2
"""If more than this part of a group and more than one node is slow, the cause is probably common to all nodes, for
example a wrong floor or NCCL setting. In this case, no node is drained."""


@dataclass(frozen=True)
class Measured:
    """A measurement. `busbw` is in GB/s, or None if there is no result, and `problem` is the reason.

    `wrong`: the all-reduce returned wrong data, which is a fault of a node. Any other problem, for example of MPI, is
    no evidence about the nodes.
    """

    busbw: float | None
    problem: str = ""
    wrong: bool = False

    def is_bad(self, floor: float | None) -> bool:
        """Return whether the data is wrong or the bandwidth is below the floor in GB/s."""
        return self.wrong or (self.busbw is not None and floor is not None and self.busbw < floor)

    def is_good(self, floor: float | None) -> bool:
        """Return whether there is a result that is not bad."""
        return self.busbw is not None and not self.is_bad(floor)

    def __str__(self) -> str:
        return self.problem if self.busbw is None else f"{self.busbw:.4g} GB/s"


@dataclass(frozen=True)
class Verdict:
    """Conclusions for a group. `suspects` maps each slow node to its pair with a good node, to be measured again."""

    suspects: Mapping[str, Pair]
    undecided: tuple[Pair, ...]
    """Slow pairs in which the slow node is unknown."""


def rounds(names: Sequence[str], fresh: Collection[str]) -> list[list[Pair]]:
    """Return rounds of pairs. The pairs of a round have no node in common, so they can be measured at the same time.

    Each fresh node is in at least two pairs if there are three or more nodes. Pairs without a fresh node are omitted.
    The pairs are the first rounds of a round-robin tournament by the circle method: the first node stays, and the
    others rotate by one position per round.
    """
    players: list[str | None] = [*names]
    if len(players) % 2:
        players.append(None)
    half = len(players) // 2
    number = {0: 0, 1: 1}.get(half, 2 + len(names) % 2)
    found = []
    for _ in range(number):
        facing = zip(players[:half], reversed(players[half:]), strict=True)
        pairs = [(a, b) for a, b in facing if a is not None and b is not None and not {a, b}.isdisjoint(fresh)]
        found.append(pairs)
        players = [players[0], players[-1], *players[1:-1]]
    return [pairs for pairs in found if pairs]


def judge(results: Mapping[Pair, Measured], floor: float | None) -> Verdict:
    """Return the conclusions. A node with one fast pair is good, so its slow pairs are caused by the partners."""
    slow = [pair for pair, result in results.items() if result.is_bad(floor)]
    good = {name for pair, result in results.items() if result.is_good(floor) for name in pair}
    suspects: dict[str, Pair] = {}
    undecided = []
    for first, second in slow:
        if (first in good) == (second in good):
            undecided.append((first, second))
            continue
        suspects.setdefault(second if first in good else first, (first, second))
    return Verdict(suspects, tuple(pair for pair in undecided if suspects.keys().isdisjoint(pair)))


def is_common_fault(faulty: Collection[str], nodes: Collection[str]) -> bool:
    """Return whether a common cause is likely, because several nodes and a large part of the group are slow."""
    return len(faulty) > 1 and len(faulty) > MAX_FAULTY * len(nodes)
