"""List the resources in a stack's simulated clouds: `python -m offline list STACK`.

The list is read from the simulated clouds and not from Pulumi's state, so it must be empty after `destroy`.
"""

from __future__ import annotations

import argparse
import sys

from offline.cloud.world import World


def main(arguments: list[str] | None = None) -> int:
    """Print the list and return the exit code, which is 1 if the stack has never run offline."""
    parser = argparse.ArgumentParser(prog="python -m offline", description=__doc__)
    parser.add_argument("verb", choices=["list"])
    parser.add_argument("stack")
    world = World(parser.parse_args(arguments).stack)
    if not world.folder.is_dir():
        sys.stderr.write(f"{world.folder} does not exist. Fix: use the name of a stack with an offline run\n")
        return 1
    for found in sorted(world.records(), key=lambda found: found.id):
        sys.stdout.write(f"{'unfinished' if found.made_by else 'ready':10}  {found.token:55}  {found.id}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
