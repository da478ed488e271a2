"""Contract for the local platform."""

from __future__ import annotations

from typing import Any

import pulumi

from components.platforms.local import platform
from tests.components.platforms.contract import Contract
from tests.components.platforms.local.conftest import HOST_KEY
from tests.components.platforms.recording import Built

_KIND = "local:Vm"


def _answer(args: pulumi.runtime.MockResourceArgs) -> tuple[str, dict[str, Any]]:
    outputs = {
        "address": "127.0.0.1",
        "host_key": HOST_KEY,
        "machine_id": f"number-of-{args.name}",
        "boots": 1,
        "starts": 1,
    }
    given = {name: value for name, value in args.inputs.items() if value is not None}
    return f"id-{args.name}", {**outputs, **given}


def _tell(args: pulumi.runtime.MockCallArgs) -> dict[str, Any]:
    raise AssertionError(f"the local platform must not invoke functions, but invoked {args.token}")


def _by_host(built: Built, key: str) -> dict[str, str]:
    return {inputs["host"]: inputs[key] for inputs in built.all(_KIND).values()}


CONTRACT = Contract(
    stack="local",
    answer=_answer,
    tell=_tell,
    addresses=lambda built: {name: text.partition("/")[0] for name, text in _by_host(built, "private_ip").items()},
    user_data=lambda built: _by_host(built, "user_data"),
    # Each machine's sshd listens on 127.0.0.1, so no external network can connect.
    ssh_from=lambda built: set(),
    prepare=lambda patch: patch.setattr(platform, "_prepare", lambda spec: None),
)
