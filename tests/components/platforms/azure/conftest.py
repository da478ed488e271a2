"""Mock outputs for Azure resources."""

from __future__ import annotations

import asyncio
from typing import Any

import pulumi
import pytest

from offline.cloud.outputs import host_key
from tests.components.platforms.recording import Build, Built, record

__all__ = ["Build", "Built"]

GROUP = "/subscriptions/s/resourceGroups"


@pytest.fixture
def build(loops: asyncio.AbstractEventLoop) -> Build:
    """Declare the platform for an edited stack, with mocks instead of the engine."""
    return lambda stack, **edits: record(stack, edits, answer, tell)


def answer(args: pulumi.runtime.MockResourceArgs) -> tuple[str, dict[str, Any]]:
    name = next((args.inputs[key] for key in ("accountName", "resourceGroupName") if key in args.inputs), args.name)
    outputs = {**args.inputs, "name": args.name}
    match args.typ.rpartition(":")[2]:
        case "ResourceGroup":
            return f"{GROUP}/{name}", {**outputs, "name": name}
        case "VirtualMachine":
            outputs["vmId"] = f"number-of-{args.name}"
            outputs["timeCreated"] = "2026-01-01T00:00:00Z"
        case "BastionHost":
            return f"{GROUP}/{name}/providers/Microsoft.Network/bastionHosts/{args.name}", outputs
        case "PublicIPAddress":
            outputs["ipAddress"] = "192.0.2.7"
        case "StorageAccount":
            outputs["name"] = args.inputs["accountName"]
        case "CapacityPool":
            # Azure reports the name of a pool as <account>/<pool>.
            outputs["name"] = f"{args.inputs['accountName']}/{args.inputs['poolName']}"
        case "CapacityPoolVolume":
            outputs["mountTargets"] = [{"ipAddress": "10.78.0.68", "fileSystemId": "f", "mountTargetId": "m"}]
    return f"id-{args.name}", outputs


def tell(args: pulumi.runtime.MockCallArgs) -> dict[str, Any]:
    """Return the result of a run command. Its output is included only in the expanded view."""
    written = f"Enable succeeded:\n{host_key(args.args['vmName'])}\n"
    return {"instanceView": {"output": written} if args.args.get("expand") == "instanceView" else None}
