"""Reach the Pulumi SDK's protocol modules without running the SDK.

`import pulumi` loads the whole SDK with its automation API and tracing, which a plugin never uses and which takes as
long again as everything that it does use. The engine waits for a plugin's port on every preview.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path

_PACKAGES = ("pulumi", "pulumi.runtime", "pulumi.runtime.proto")


def leave_sdk_out() -> None:
    """Make the SDK's packages bare folders, for a process that needs nothing of them but `pulumi.runtime.proto`.

    Does nothing where the SDK is imported already or laid out otherwise: the plain import then works, only slower.
    """
    spec = importlib.util.find_spec("pulumi")
    if "pulumi" in sys.modules or spec is None or spec.origin is None:
        return
    root = Path(spec.origin).parent
    if not (root / "runtime" / "proto" / "provider_pb2.py").is_file():
        return
    for name in _PACKAGES:
        module = types.ModuleType(name)
        module.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = module
