"""Mock outputs for Compute Engine resources."""

from __future__ import annotations

import asyncio
from typing import Any

import pulumi
import pytest

from offline.cloud.outputs import host_key
from tests.components.platforms.recording import Build, Built, record

__all__ = ["Build", "Built"]


@pytest.fixture
def build(loops: asyncio.AbstractEventLoop) -> Build:
    """Declare the platform for an edited stack, with mocks instead of the engine."""
    return lambda stack, **edits: record(stack, edits, answer, tell)


def answer(args: pulumi.runtime.MockResourceArgs) -> tuple[str, dict[str, Any]]:
    created = "2026-11-22T03:00:00.000-08:00"
    extra: dict[str, Any] = {
        "creationTimestamp": created,
        "selfLink": f"link:{args.name}",
        "email": f"{args.name}@mail",
        "address": "192.0.2.7",
    }
    if args.typ == "gcp:filestore/instance:Instance":
        extra["networks"] = [{**net, "ipAddresses": ["10.9.8.2"]} for net in args.inputs["networks"]]
        return args.name, {**args.inputs, **extra}
    return f"id-{args.name}", {**extra, **args.inputs, "instanceId": f"number-of-{args.name}"}


def tell(args: pulumi.runtime.MockCallArgs) -> dict[str, Any]:
    return {"variableValue": host_key(args.args["name"]).split()[1]}
