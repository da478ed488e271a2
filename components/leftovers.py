"""What keeps running and costing money if a machine or storage cannot be created in the middle of `pulumi up`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

import pulumi
from pulumi.runtime.proto import resource_pb2
from pulumi.runtime.settings import monitor_supports_feature

from components.demand import host_usd, services
from components.plan import ClusterPlan
from components.platforms.base import Platform
from components.spec import ClusterSpec

_SETTLE_SECONDS = 0.2
"""Time for answers of the engine that are on their way when a creation fails."""


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """A resource that is billed by the hour while it exists. `usd_per_hour` is None if no list price is recorded."""

    name: str
    kind: str
    usd_per_hour: float | None
    protected: bool
    exists: bool
    """False while it is being created, or if its creation has not begun."""

    @property
    def line(self) -> str:
        """The resource as one line of the message."""
        price = "price unknown" if self.usd_per_hour is None else f"{self.usd_per_hour:.2f} dollars an hour"
        return f"  {self.name}: {self.kind}, {price}"


def leftovers_message(failed: str, stack: str, found: Iterable[Leftover]) -> str:
    """Return what exists and is billed after the creation of `failed` failed, and how to go on or remove it."""
    known = [leftover for leftover in found if leftover.name != failed]
    made = [leftover for leftover in known if leftover.exists]
    open_ = [leftover for leftover in known if not leftover.exists]
    if not made and not open_:
        return f"{failed} could not be created. No machine and no storage of this stack exists; nothing is billed."
    total = sum(leftover.usd_per_hour or 0 for leftover in made)
    unpriced = [leftover.name for leftover in made if leftover.usd_per_hour is None]
    beside = f", and the unknown price of {', '.join(unpriced)}" if unpriced else ""
    lines = [f"{failed} could not be created. What the stack has made before keeps running and is billed."]
    if made:
        lines += ["These exist:", *(leftover.line for leftover in made)]
        lines += [f"  in all {total:.2f} dollars an hour by list prices{beside}"]
    if open_:
        lines += ["These were not finished yet, and are billed as soon as they exist:", *(one.line for one in open_)]
    lines += [
        f"To create what is missing, run `pulumi up -s {stack}` again.",
        *_removal(stack, [leftover.name for leftover in known if leftover.protected]),
    ]
    return "\n".join(lines)


def _removal(stack: str, protected: list[str]) -> list[str]:
    if not protected:
        return [f"To remove everything, run `pulumi destroy -s {stack}`."]
    names = ", ".join(protected)
    return [
        f"To remove all but the protected storage ({names}), run `pulumi destroy -s {stack} --exclude-protected`.",
        f"To remove {names} as well, set platform.protect_storage to false, run `pulumi up -s {stack}`, then "
        f"`pulumi destroy -s {stack}`.",
    ]


class Leftovers:
    """Remembers the billed resources of a run, and warns with `leftovers_message` when the first creation fails."""

    def __init__(self, spec: ClusterSpec, plan: ClusterPlan, platform: type[Platform]) -> None:
        self._hosts = {host.name: host for host in plan.hosts}
        self._billed = platform.billed
        prices = {service.name: service.usd for service in services(spec)}
        storage = prices.get(spec.platform.storage_offer(spec.storage.shared.kind) or "")
        gateway = prices.get(spec.platform.gateway_offer() or "")
        self._usd = dict.fromkeys(platform.storage_types, storage) | dict.fromkeys(platform.gateway_types, gateway)
        self._seen: list[tuple[str, str, bool, pulumi.CustomResource]] = []
        self._warned = False
        self._hook = pulumi.ErrorHook("trainyard-leftovers", self._failed)

    @staticmethod
    def can_watch() -> bool:
        """Whether this run creates resources, and the engine reports failed creations to the program."""
        known = monitor_supports_feature(resource_pb2.RESOURCE_MONITOR_FEATURE_ERROR_HOOKS)
        return known and not pulumi.runtime.is_dry_run()

    def watch(self, args: pulumi.ResourceTransformationArgs) -> pulumi.ResourceTransformationResult | None:
        """Remember a billed resource; a transformation of the platform's resources."""
        if args.type_ not in self._billed or not isinstance(args.resource, pulumi.CustomResource):
            return None
        self._seen.append((args.name, args.type_, bool(args.opts.protect), args.resource))
        hooks = pulumi.ResourceHookBinding(on_error=[self._hook])
        return pulumi.ResourceTransformationResult(
            args.props, pulumi.ResourceOptions.merge(args.opts, pulumi.ResourceOptions(hooks=hooks))
        )

    async def _failed(self, args: pulumi.ErrorHookArgs) -> bool:
        """Warn once. Returns False: the engine must not try again."""
        if args.failed_operation == "create" and not self._warned:
            self._warned = True
            found = await self._found()
            pulumi.log.warn(leftovers_message(args.name, pulumi.get_stack(), found))
        return False

    async def _found(self) -> list[Leftover]:
        seen = list(self._seen)
        ids = [asyncio.ensure_future(resource.id.future()) for *_, resource in seen]
        done, _ = await asyncio.wait(ids, timeout=_SETTLE_SECONDS)
        return [
            self._leftover(name, type_, protected, identity in done and identity.exception() is None)
            for (name, type_, protected, _), identity in zip(seen, ids, strict=True)
        ]

    def _leftover(self, name: str, type_: str, protected: bool, exists: bool) -> Leftover:
        host, kind = self._hosts.get(name), self._billed[type_]
        return Leftover(
            name=name,
            kind=f"{kind} {host.machine.name}" if host else kind,
            usd_per_hour=host_usd(host) if host else self._usd.get(type_),
            protected=protected,
            exists=exists,
        )
