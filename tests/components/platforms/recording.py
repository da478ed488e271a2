"""Pulumi mocks that record the inputs of all resources."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulumi
import yaml

from components.node.parameters import ON_HEAD, SharedFiles, storage_env
from components.node.user_data import AccessKeys
from components.plan.plan import ClusterPlan
from components.platforms.base import Host, PlatformArgs
from components.platforms.registry import platform_class
from components.stackfile.read import parse_stack
from trainyard.strict_yaml import load_own

ROOT = Path(__file__).parents[3]
KEYS = AccessKeys("ssh-ed25519 AAAAadmin admin@cluster", "ssh-ed25519 AAAAcluster cluster@cluster")

Answer = Callable[[pulumi.runtime.MockResourceArgs], tuple[str, dict[str, Any]]]
"""Returns the id and the outputs of a resource."""
Tell = Callable[[pulumi.runtime.MockCallArgs], dict[str, Any]]
"""Returns the result of a data source."""


class Recorder(pulumi.runtime.Mocks):
    """Mocks that record the inputs of each resource by type and name."""

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
    """The resources that a platform declared for a plan."""

    plan: ClusterPlan
    resources: list[tuple[str, str, dict[str, Any]]]
    hosts: list[dict[str, Any]]
    asked: list[dict[str, Any]] = field(default_factory=list)
    shared: SharedFiles = ON_HEAD
    """Location of the shared files."""

    def storage(self, name: str) -> str:
        """Return the parameters of a host that locate the shared files."""
        [host] = [host for host in self.plan.hosts if host.name == name]
        return storage_env(host, self.shared)

    def all(self, kind: str) -> dict[str, dict[str, Any]]:
        """Return the inputs of every resource whose type ends with `kind`, by name."""
        return {name: inputs for typ, name, inputs in self.resources if typ.endswith(kind)}

    def one(self, kind: str, name: str) -> dict[str, Any]:
        """Return the inputs of one resource."""
        return self.all(kind)[name]


Build = Callable[..., Built]

_BUILT: dict[str, Built] = {}
"""Cache of declared platforms, because each declaration takes half a second. Tests do not change the platforms."""


def stack_text(stack: str, **edits: Any) -> str:
    """Return a stack file with edits to its cluster. Two underscores in a key separate nested keys."""
    document = load_own((ROOT / "stacks" / f"Pulumi.{stack}.yaml").read_text())
    cluster = document["config"]["trainyard:cluster"]
    for path, value in edits.items():
        place = cluster
        *folders, last = path.split("__")
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = value
    return yaml.dump(document, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False)


def record(stack: str, edits: dict[str, Any], answer: Answer, tell: Tell) -> Built:
    """Declare the platform for an edited stack, with mocks instead of the engine. Results are cached."""
    asked = repr((stack, edits))
    if asked not in _BUILT:
        _BUILT[asked] = _record(stack, edits, answer, tell)
    return _BUILT[asked]


def _record(stack: str, edits: dict[str, Any], answer: Answer, tell: Tell) -> Built:
    parsed = parse_stack(stack_text(stack, **edits), "test")
    recorder = Recorder(answer, tell)
    told: list[dict[str, Any]] = []
    pulumi.runtime.set_mocks(recorder, preview=False)
    shared: list[SharedFiles] = []
    _run(parsed.plan, told, shared)
    return Built(plan=parsed.plan, resources=recorder.made, hosts=told, asked=recorder.asked, shared=shared[0])


def _run(plan: ClusterPlan, told: list[dict[str, Any]], shared: list[SharedFiles]) -> None:
    def program() -> pulumi.Output[Any]:
        admin, cluster = (pulumi.Output.from_input(key) for key in (KEYS.admin_public, KEYS.cluster_public))
        args = PlatformArgs(plan=plan, admin_key=admin, cluster_key=cluster)
        platform = platform_class(plan.provider)("c", args)
        location: pulumi.Output[SharedFiles] = pulumi.Output.from_input(platform.shared)
        return pulumi.Output.all(
            pulumi.Output.all(*map(_told, platform.hosts)).apply(told.extend), location.apply(shared.append)
        )

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
