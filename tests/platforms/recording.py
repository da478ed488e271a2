"""A recorder in the engine's place: what a platform asks for, with answers shaped like its cloud's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulumi
import yaml

from components.cloud_init import AccessKeys, SharedFiles, render_user_data
from components.plan import ClusterPlan
from components.platforms import platform_class
from components.platforms.base import Host, PlatformArgs, Render
from components.spec import ClusterSpec
from components.stackfile import parse_stack

ROOT = Path(__file__).parents[2]
KEYS = AccessKeys("ssh-ed25519 AAAAadmin admin@cluster", "ssh-ed25519 AAAAcluster cluster@cluster")

Answer = Callable[[pulumi.runtime.MockResourceArgs], tuple[str, dict[str, Any]]]
"""From what is asked for to its id and its outputs."""
Tell = Callable[[pulumi.runtime.MockCallArgs], dict[str, Any]]
"""From a data source's arguments to its answer."""


class Recorder(pulumi.runtime.Mocks):
    """Keeps every resource's inputs by type and name."""

    def __init__(self, answer: Answer, tell: Tell) -> None:
        self.made: list[tuple[str, str, dict[str, Any]]] = []
        self.asked: list[dict[str, Any]] = []
        self._answer, self._tell = answer, tell

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        self.made.append((args.typ, args.name, dict(args.inputs)))
        return self._answer(args)

    def call(self, args: pulumi.runtime.MockCallArgs) -> tuple[dict[Any, Any], list[tuple[str, str]] | None]:
        self.asked.append(dict(args.args))
        return self._tell(args), []


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

_BUILT: dict[str, Built] = {}
"""What was built before: half a second each, and no test changes it."""


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


def record(stack: str, edits: dict[str, Any], answer: Answer, tell: Tell) -> Built:
    """Run an edited stack's platform with a recorder in the engine's place, each stack once."""
    asked = repr((stack, edits))
    if asked not in _BUILT:
        _BUILT[asked] = _record(stack, edits, answer, tell)
    return _BUILT[asked]


def _record(stack: str, edits: dict[str, Any], answer: Answer, tell: Tell) -> Built:
    parsed = parse_stack(stack_text(stack, **edits), "test")
    recorder = Recorder(answer, tell)
    told: list[dict[str, Any]] = []
    pulumi.runtime.set_mocks(recorder, preview=False)
    _run(parsed.spec, parsed.plan, told)
    return Built(plan=parsed.plan, resources=recorder.made, hosts=told, asked=recorder.asked)


def _run(spec: ClusterSpec, plan: ClusterPlan, told: list[dict[str, Any]]) -> None:
    def user_data(shared: pulumi.Input[SharedFiles]) -> pulumi.Output[Render]:
        known = pulumi.Output.from_input(shared)
        return known.apply(lambda files: lambda host: render_user_data(plan, host, KEYS, files))

    def program() -> pulumi.Output[Any]:
        key = pulumi.Output.from_input(KEYS.admin_public)
        args = PlatformArgs(
            spec=spec.platform, cluster=spec, plan=plan, user_data=user_data, admin_key=key, cluster_key=key
        )
        platform = platform_class(plan.provider)("c", args)
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
        tunnel=host.tunnel,
        through_head=host.through_head,
    )
