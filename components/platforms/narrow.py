"""Import single modules of a cloud's SDK, not all of the package that they are in.

A package's `__init__` imports every resource that it has, and each brings its own documentation: seconds of processor
time. What is left is mostly the shared input and output types, which no resource can do without.
"""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any


@contextmanager
def narrow_import(*packages: str) -> Iterator[None]:
    """Let `from <package>.<module> import ...` load that module alone, unless the package is there already.

    `packages` are such as "pulumi_gcp.compute".
    """
    for package in packages:
        _make_bare(package)
    # The collector would otherwise look through the new classes again and again.
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _make_bare(package: str) -> None:
    """Put a package in place that knows its modules and runs its `__init__` only when a class of it is asked for."""
    sdk, _, name = package.rpartition(".")
    # The SDK itself puts a stand-in there, of another type, which becomes the whole package when it is touched.
    spec = importlib.util.find_spec(sdk)
    if type(sys.modules.get(package)) is ModuleType or spec is None or spec.origin is None:
        return
    folder = Path(spec.origin).parent / name
    whole = importlib.util.spec_from_file_location(
        package, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if whole is None or whole.loader is None:
        return
    load = whole.loader.exec_module
    bare = importlib.util.module_from_spec(whole)

    def ask(wanted: str) -> Any:
        # The SDK asks for a class by name when an output refers to a resource; importlib asks for modules first.
        if not wanted[0].isupper() or wanted in loaded:
            raise AttributeError(wanted)
        loaded.add(wanted)
        load(bare)
        return vars(bare)[wanted]

    loaded: set[str] = set()
    bare.__dict__["__getattr__"] = ask
    sys.modules[package] = bare
    if parent := sys.modules.get(sdk):
        vars(parent)[name] = bare
