"""The entry point of the Pulumi program, which the `__main__.py` of a project calls."""

from __future__ import annotations

import gc
import signal
from importlib.util import find_spec
from pathlib import Path

import pulumi

from trainyard.project import installed


def run() -> None:
    """Create the current stack's cluster or, for `yard bake`, its image.

    Python searches the project's folder first, so a package with the same name in the project would hide `components`.
    Pulumi's dynamic providers import `components` by its name, so a different search path here would not be enough.
    """
    found = find_spec("components")
    origin = found.origin if found else None
    if origin is None or Path(origin).resolve() != installed("components/__init__.py"):
        raise pulumi.RunError(f"{origin} hides trainyard's package `components`. Fix: rename it in your project")
    from components.cluster.program import program  # noqa: PLC0415  (after the check)

    # After Ctrl-C, Pulumi sends SIGINT to this process, and Python would print a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # With 512 nodes, garbage collection would take 4 of 15 s, although nearly all objects live until the program exits.
    gc.disable()
    pulumi.run(program)
