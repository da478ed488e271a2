"""The command `trainyard-health`.

usage: trainyard-health daemon | apply | report | return [--new] | status | clear CHECK
"""

from __future__ import annotations

import json
import os
import sys

from health.daemon import CACHE, Daemon, report
from health.node import Node, load_checks
from health.slurm import apply, return_to_service


def main(arguments: list[str]) -> int:
    """Run a command. Return the exit code."""
    node = Node()
    match arguments:
        case ["daemon"]:
            Daemon(node).run()
        case ["apply"]:
            # Slurm's HealthCheckProgram calls this if there is a verdict. Only the daemon resumes a node.
            reason = node.read(f"{CACHE}/verdict").partition(" ")[2]
            return 0 if not reason or apply(node, reason, load_checks(), ()) else 1
        case ["report"]:
            sys.stdout.writelines(f"{line}\n" for line in report(node))
            # A check that waits for a hanging file system leaves a thread that never ends. _exit does not wait for it.
            sys.stdout.flush()
            os._exit(0)
        case ["return", *options] if set(options) <= {"--new"}:
            return_to_service(node, is_new=bool(options))
        case ["status"]:
            sys.stdout.write(f"{status(node)}\n")
        case ["clear", check] if check in load_checks():
            with open(node.path(f"{CACHE}/events"), "r+b", buffering=0) as pipe:
                pipe.write(f"clear {check}\n".encode())
        case _:
            sys.stderr.write(f"{(__doc__ or '').strip().splitlines()[-1]}\n")
            return 2
    return 0


def status(node: Node) -> str:
    """Return the verdicts, their history and the last results as JSON."""
    ledger = json.loads(node.read("/var/lib/trainyard/health.json") or "{}")
    cache = json.loads(node.read(f"{CACHE}/results.json") or "{}")
    kept = {key: ledger.get(key, {}) for key in ("verdicts", "history")}
    return json.dumps({**kept, **cache}, indent=2)
