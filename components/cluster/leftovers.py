"""Warns about resources that keep running, and cost money, if `pulumi up` fails to create another resource."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

import pulumi

from components.catalog import service_prices
from components.plan.plan import ClusterPlan
from components.platforms.demand import host_usd, service_usd
from components.platforms.registry import PlatformFacts

_SETTLE_SECONDS = 0.2
"""How long the warning waits for the engine to report other resources that have been created."""


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """A resource billed by the hour. `usd_per_hour` is None if no list price is recorded."""

    name: str
    kind: str
    usd_per_hour: float | None
    protected: bool
    exists: bool

    @property
    def line(self) -> str:
        price = "price unknown" if self.usd_per_hour is None else f"{self.usd_per_hour:.2f} dollars an hour"
        return f"  {self.name}: {self.kind}, {price}"


def leftovers_message(failed: str, stack: str, found: Iterable[Leftover]) -> str:
    """Return a warning that `failed` could not be created, together with the billed resources and the next commands."""
    others = [leftover for leftover in found if leftover.name != failed]
    existing = [leftover for leftover in others if leftover.exists]
    unfinished = [leftover for leftover in others if not leftover.exists]
    if not others:
        return f"{failed} could not be created. This stack has no machines or storage, so nothing is billed."
    total = sum(leftover.usd_per_hour or 0 for leftover in existing)
    unpriced = [leftover.name for leftover in existing if leftover.usd_per_hour is None]
    unknown = f", plus the unknown price of {', '.join(unpriced)}" if unpriced else ""
    lines = [f"{failed} could not be created. Other resources in the stack keep running and are billed."]
    if existing:
        lines += ["Existing resources:", *(leftover.line for leftover in existing)]
        lines += [f"  in total {total:.2f} dollars an hour at list prices{unknown}"]
    if unfinished:
        lines += ["Unfinished resources, billed as soon as they exist:", *(leftover.line for leftover in unfinished)]
    lines += [
        f"To create the missing resources, run `pulumi up -s {stack}` again.",
        *_removal(stack, [leftover.name for leftover in others if leftover.protected]),
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
    """Tracks the billed resources in a run, and logs `leftovers_message` when the first creation fails."""

    def __init__(self, plan: ClusterPlan, platform: PlatformFacts) -> None:
        self._hosts = {host.name: host for host in plan.hosts}
        self._billed = platform.billed
        self._usd = dict.fromkeys(platform.storage_types, service_usd(plan, plan.storage.kind))
        self._usd |= dict.fromkeys(platform.gateway_types, service_usd(plan, "bastion"))
        self._usd |= {type_: service_prices(plan.provider)[row].usd(0) for type_, row in platform.rows.items()}
        self._seen: list[tuple[str, str, bool, pulumi.CustomResource]] = []
        self._warned = False
        self._hook = pulumi.ErrorHook("trainyard-leftovers", self._failed)

    def watch(self, args: pulumi.ResourceTransformationArgs) -> pulumi.ResourceTransformationResult | None:
        """Track a billed resource and add the error hook to it.

        Unlike a transform, a transformation receives the resource. The resource's ID shows whether it exists.
        """
        if args.type_ not in self._billed or not isinstance(args.resource, pulumi.CustomResource):
            return None
        self._seen.append((args.name, args.type_, bool(args.opts.protect), args.resource))
        hooks = pulumi.ResourceHookBinding(on_error=[self._hook])
        return pulumi.ResourceTransformationResult(
            args.props, pulumi.ResourceOptions.merge(args.opts, pulumi.ResourceOptions(hooks=hooks))
        )

    async def _failed(self, args: pulumi.ErrorHookArgs) -> bool:
        if args.failed_operation == "create" and not self._warned:
            self._warned = True
            found = await self._found()
            pulumi.log.warn(leftovers_message(args.name, pulumi.get_stack(), found))
        return False  # do not retry

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
