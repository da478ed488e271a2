"""Import the few modules of `pulumi_gcp.compute` that are used, not all 460 of them.

The package's `__init__` imports every resource of Compute Engine: 3.4 s of processor time with SDK 10.2.0. What is used
here takes 2.0 s, nearly all of it for the shared input and output types, which no resource can do without; and
1.6 s with the collector off, which otherwise looks through the new classes again and again.
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

_PACKAGE = "pulumi_gcp.compute"


@contextmanager
def narrow_import() -> Iterator[None]:
    """Let `from pulumi_gcp.compute.<module> import ...` load that module alone, unless the package is there already."""
    _make_bare()
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _make_bare() -> None:
    """Put a package in place that knows its modules and runs its `__init__` only when a class of it is asked for."""
    # The SDK itself puts a stand-in there, of another type, which becomes the whole package when it is touched.
    spec = importlib.util.find_spec("pulumi_gcp")
    if type(sys.modules.get(_PACKAGE)) is ModuleType or spec is None or spec.origin is None:
        return
    folder = Path(spec.origin).parent / "compute"
    whole = importlib.util.spec_from_file_location(
        _PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if whole is None or whole.loader is None:
        return
    load = whole.loader.exec_module
    bare = importlib.util.module_from_spec(whole)

    def ask(name: str) -> Any:
        # The SDK asks for a class by name when an output refers to a resource; importlib asks for modules first.
        if not name[0].isupper() or name in loaded:
            raise AttributeError(name)
        loaded.add(name)
        load(bare)
        return vars(bare)[name]

    loaded: set[str] = set()
    bare.__dict__["__getattr__"] = ask
    sys.modules[_PACKAGE] = bare
    if parent := sys.modules.get("pulumi_gcp"):
        vars(parent)["compute"] = bare
