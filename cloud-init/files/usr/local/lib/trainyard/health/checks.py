"""Runs checks."""

from __future__ import annotations

import os
from collections.abc import Callable

from health import events, fabric, gpu, system
from health.core import FAIL, Check, Node, Outcome, checks_for, unknown
from health.kmsg import fatal_xid, load_xids, records

FUNCTIONS: dict[str, Callable[[Node, Check], Outcome]] = {
    **system.CHECKS,
    **gpu.CHECKS,
    **fabric.CHECKS,
    **events.CHECKS,
}


def run_check(node: Node, check: Check) -> Outcome:
    """Return the result of a check. If the check raises an exception, the result is UNKNOWN."""
    try:
        return FUNCTIONS[check.id](node, check)
    except Exception as error:
        return unknown(f"the check failed: {type(error).__name__}: {error}")


def report(node: Node) -> list[str]:
    """Run all checks for this node once, and return one tab-separated line for each check that failed.

    Fields: id, class, text, cause, fix. Each check is run once, so a single failure is reported.
    """
    read_kernel_log(node)
    lines = []
    checks = {check.id: check for context in ("boot", "periodic") for check in checks_for(node, context)}
    for check in checks.values():
        outcome = run_check(node, check)
        if outcome.state == FAIL:
            lines.append("\t".join((check.id, check.severity, outcome.text, check.cause, check.fix)))
    return lines


def read_kernel_log(node: Node) -> None:
    """Add the last fatal Xid in the kernel log to the node's events."""
    try:
        log = os.open(node.path("/dev/kmsg"), os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return
    try:
        codes = load_xids()
        for _, line in records(log):
            if (text := fatal_xid(line, codes)) is not None:
                node.events["gpu-xid"] = text
    finally:
        os.close(log)
