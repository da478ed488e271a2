"""Look into a stack's simulated clouds, or test with an official plugin: `python -m offline VERB STACK`.

list: list the resources in the simulated clouds. The list does not come from Pulumi's state, so it must be empty after
`destroy`. official: run up, refresh, up and destroy of a Google Cloud stack with the official pulumi-gcp plugin in
--home, whose requests go to the simulated cloud. The exit code is 3 if the plugin is not installed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from offline.cloud.official import run_official
from offline.cloud.world import World
from trainyard.errors import StackError


def main(arguments: list[str] | None = None) -> int:
    """Run the verb and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m offline", description=__doc__)
    parser.add_argument("verb", choices=["list", "official"])
    parser.add_argument("stack")
    home = Path.home() / ".pulumi"
    parser.add_argument("--home", type=Path, default=home, help=f"Pulumi home with the official plugin ({home})")
    chosen = parser.parse_args(arguments)
    try:
        return _list(chosen.stack) if chosen.verb == "list" else run_official(chosen.stack, chosen.home)
    except StackError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1


def _list(stack: str) -> int:
    """Print the list and return the exit code, which is 1 if the stack has never run offline."""
    world = World(stack)
    if not world.folder.is_dir():
        sys.stderr.write(f"{world.folder} does not exist. Fix: use the name of a stack with an offline run\n")
        return 1
    for found in sorted(world.records(), key=lambda found: found.id):
        sys.stdout.write(f"{'unfinished' if found.made_by else 'ready':10}  {found.token:55}  {found.id}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
