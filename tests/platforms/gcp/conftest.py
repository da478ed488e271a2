"""A recorder in the engine's place: what the program asks for, and answers shaped like Compute Engine's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulumi
import pytest
import yaml

from components.cloud_init import AccessKeys, SharedFiles, render_user_data
from components.plan import ClusterPlan, HostPlan
from components.platforms.base import Host, PlatformArgs
from components.platforms.gcp.platform import GcpPlatform
from components.spec import ClusterSpec
from components.stackfile import parse_stack

ROOT = Path(__file__).parents[3]
KEYS = AccessKeys("ssh-ed25519 AAAAadmin admin@cluster", "ssh-ed25519 AAAAcluster cluster@cluster")

Edit = dict[str, Any]


class Recorder(pulumi.runtime.Mocks):
    """Keeps every resource's inputs by type and name."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str, dict[str, Any]]] = []
        self.asked: list[dict[str, Any]] = []

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        self.made.append((args.typ, args.name, dict(args.inputs)))
        extra: dict[str, Any] = {"selfLink": f"link:{args.name}", "email": f"{args.name}@mail", "address": "192.0.2.7"}
        if args.typ == "gcp:filestore/instance:Instance":
            extra["networks"] = [{**net, "ipAddresses": ["10.9.8.2"]} for net in args.inputs["networks"]]
            return args.name, {**args.inputs, **extra}
        return f"id-{args.name}", {**extra, **args.inputs, "instanceId": f"number-of-{args.name}"}

    def call(self, args: pulumi.runtime.MockCallArgs) -> tuple[dict[Any, Any], list[tuple[str, str]] | None]:
        self.asked.append(dict(args.args))
        return {"variableValue": f"AAAA{args.args['name']}"}, []


@dataclass
class Built:
    """What one run of the platform made."""

    plan: ClusterPlan
    resources: list[tuple[str, str, dict[str, Any]]]
    hosts: list[dict[str, Any]]
    asked: list[dict[str, Any]] = field(default_factory=list)

    def all(self, kind: str) -> dict[str, dict[str, Any]]:
        """Return the inputs of every resource whose type ends so, by name."""
        return {name: inputs for typ, name, inputs in self.resources if typ.endswith(kind)}

    def one(self, kind: str, name: str) -> dict[str, Any]:
        """Return the inputs of one resource."""
        return self.all(kind)[name]


Build = Callable[..., Built]


def stack_text(stack: str, **edits: Any) -> str:
    """Return a stack file of the project with keys of its cluster replaced; a dotted key reaches inside."""
    document = yaml.safe_load((ROOT / "stacks" / f"Pulumi.{stack}.yaml").read_text())
    cluster = document["config"]["trainyard:cluster"]
    for path, value in edits.items():
        place = cluster
        *folders, last = path.split("__")
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = value
    return yaml.safe_dump(document, sort_keys=False)


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop for one program; the SDK makes more, one for each of its threads, and leaves all of them open."""
    made: list[asyncio.AbstractEventLoop] = []
    new = asyncio.new_event_loop

    def recorded() -> asyncio.AbstractEventLoop:
        made.append(new())
        return made[-1]

    monkeypatch.setattr(asyncio, "new_event_loop", recorded)
    asyncio.set_event_loop(recorded())
    yield made[0]
    made[0].run_until_complete(made[0].shutdown_default_executor())
    asyncio.set_event_loop(None)
    for loop in made:
        loop.close()


@pytest.fixture
def build(loops: asyncio.AbstractEventLoop) -> Build:
    """Run the platform on an edited stack with a recorder in the engine's place."""

    def run(stack: str, **edits: Any) -> Built:
        parsed = parse_stack(stack_text(stack, **edits), "test")
        recorder = Recorder()
        told: list[dict[str, Any]] = []
        pulumi.runtime.set_mocks(recorder, preview=False)
        _run(parsed.spec, parsed.plan, told)
        return Built(plan=parsed.plan, resources=recorder.made, hosts=told, asked=recorder.asked)

    return run


def _run(spec: ClusterSpec, plan: ClusterPlan, told: list[dict[str, Any]]) -> None:
    def user_data(host: HostPlan, shared: pulumi.Input[SharedFiles]) -> pulumi.Output[str]:
        return pulumi.Output.from_input(shared).apply(lambda known: render_user_data(plan, host, KEYS, known))

    def program() -> pulumi.Output[Any]:
        key = pulumi.Output.from_input(KEYS.admin_public)
        args = PlatformArgs(spec=spec.platform, cluster=spec, plan=plan, user_data=user_data, admin_key=key)
        platform = GcpPlatform("c-gcp", args)
        return pulumi.Output.all(*map(_told, platform.hosts)).apply(told.extend)

    pulumi.runtime.test(program)()  # type: ignore[no-untyped-call]


def _told(host: Host) -> pulumi.Output[dict[str, Any]]:
    return pulumi.Output.all(
        name=host.plan.name,
        address=host.address,
        port=host.port,
        host_key=host.host_key,
        machine_id=host.machine_id,
        boots=host.boots,
        through_head=host.through_head,
    )
