"""List the resources in simulated clouds: `python -m offline list STACK [--json]`, `python -m offline stacks`.

The list comes from the simulated clouds, not from Pulumi's state. It must be empty after `destroy`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from offline.cloud.world import World, base_folder


def main(arguments: list[str] | None = None) -> int:
    """Run one command. Return the exit code, which is 1 for a stack without an offline run."""
    parser = argparse.ArgumentParser(prog="python -m offline", description=__doc__)
    parser.add_argument("--folder", type=Path, default=base_folder(), help="folder that contains the simulated clouds")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("stacks", help="list the stacks")
    listing = verbs.add_parser("list", help="list the resources in a stack's clouds")
    listing.add_argument("stack")
    listing.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    if chosen.verb == "stacks":
        sys.stdout.writelines(f"{folder.name}\n" for folder in sorted(chosen.folder.glob("*")) if folder.is_dir())
        return 0
    world = World(chosen.stack, chosen.folder)
    if not world.folder.is_dir():
        sys.stderr.write(
            f"no offline run of stack '{chosen.stack}' in {chosen.folder}. Fix: see `python -m offline stacks`\n"
        )
        return 1
    _list(world, as_json=chosen.json)
    return 0


def _list(world: World, *, as_json: bool) -> None:
    rows = [
        {"id": found.id, "type": found.token, "state": "unfinished" if found.made_by else "ready"}
        for found in sorted(world.records(), key=lambda found: found.id)
    ]
    if as_json:
        sys.stdout.write(f"{json.dumps(rows, indent=2)}\n")
        return
    sys.stdout.writelines(f"{row['state']:10}  {row['type']:55}  {row['id']}\n" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
