"""Previews stacks, and converts the results to a JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from components.plan.check import Finding, Level
from components.plan.plan import ClusterPlan, HostPlan
from components.platforms.demand import hourly_price, services, storage_mib_s, used_prices, used_sources
from components.platforms.local.computer import THIS_COMPUTER
from components.platforms.registry import platform_facts
from trainyard.errors import ClusterError
from yard.preview.account import Account, read_account
from yard.preview.describe import Description, Snapshot, describe
from yard.preview.difference import Difference, commit_of, compare, snapshots_at
from yard.preview.engine import Resources, preview_all
from yard.show import warn


@dataclass(frozen=True, kw_only=True)
class Report:
    """A stack's results.

    A result is None if its step did not run: the engine, the comparison with a base, or reading the account.
    """

    description: Description
    resources: Resources | None = None
    difference: Difference | None = None
    account: Account | None = None

    @property
    def stack(self) -> str:
        return self.description.stack

    @property
    def fine(self) -> bool:
        """Whether the stack file is valid and the engine reported no errors."""
        return self.description.plan is not None and self.resources is not None and not self.resources.errors


@dataclass(frozen=True, kw_only=True)
class Preview:
    """The results of all stacks. If the stacks could not be compared with `base`, `base_problem` says why."""

    offline: bool
    base: str | None
    base_problem: str | None
    reports: tuple[Report, ...]

    @property
    def fine(self) -> bool:
        return all(report.fine for report in self.reports)


def preview(stacks: Sequence[str], *, live: bool, against: str | None) -> Preview:
    """Preview the stacks. Raises UnknownRevision if git cannot resolve `against`."""
    base = commit_of(against) if against is not None else None
    described = {stack: describe(stack, computer=THIS_COMPUTER) for stack in stacks}
    before: dict[str, Snapshot] | None = None
    base_problem = None
    if base:
        try:
            before = snapshots_at(base)
        except ClusterError as error:
            base_problem = str(error)
    # For an invalid file, the engine would only repeat the problems.
    valid = [stack for stack, description in described.items() if description.plan]
    resources = preview_all(valid, live=live, tell=warn) if valid else {}
    reports = tuple(
        Report(
            description=description,
            resources=resources.get(stack),
            difference=compare(before.get(stack), description.snapshot) if before is not None else None,
            account=read_account(description) if live and description.plan else None,
        )
        for stack, description in described.items()
    )
    return Preview(offline=not live, base=base, base_problem=base_problem, reports=reports)


def as_json(preview: Preview) -> dict[str, Any]:
    """Return the document described in docs/preview.md."""
    return {
        "offline": preview.offline,
        "base": preview.base,
        "base_problem": preview.base_problem,
        "fine": preview.fine,
        "stacks": [stack_json(report) for report in preview.reports],
    }


def stack_json(report: Report) -> dict[str, Any]:
    described, resources, plan = report.description, report.resources, report.description.plan
    findings = [(each.level is Level.ERROR, _finding(each)) for each in described.findings]
    return {
        "stack": report.stack,
        "file": described.file,
        "fine": report.fine,
        "problems": [finding for is_error, finding in findings if is_error],
        "remarks": [finding for is_error, finding in findings if not is_error],
        "plan": plan and _plan(plan),
        "price": plan and _price(plan),
        "services": [
            {"name": each.name, "usd_per_hour": each.usd, "region": each.region, "priced": each.priced}
            for each in (services(plan) if plan else ())
        ],
        "storage": plan and _storage(plan),
        "quota": [asdict(each) for each in described.quota],
        "user_data_bytes": described.user_data_bytes,
        "user_data_limit": platform_facts(plan.provider).user_data_limit if plan else 0,
        "resources": resources
        and {
            "by_operation": resources.by_operation,
            "by_type": resources.by_type,
            "changes": [asdict(step) for step in resources.changes],
            "errors": resources.errors,
            "warnings": resources.warnings,
        },
        "difference": report.difference and asdict(report.difference),
        "account": report.account and asdict(report.account),
    }


def _finding(found: Finding) -> dict[str, str]:
    return {"check": found.check, "level": found.level.value, **asdict(found.problem)}


def _plan(plan: ClusterPlan) -> dict[str, Any]:
    return {
        "name": plan.name,
        "provider": plan.provider,
        "place": plan.region,
        "scheduler": plan.scheduler,
        "network": str(plan.network),
        "image": plan.image.name,
        "hosts": [_host(plan, host) for host in plan.hosts],
    }


def _host(plan: ClusterPlan, host: HostPlan) -> dict[str, Any]:
    return {
        "name": host.name,
        "role": host.role.value,
        "group": host.group or "",
        "ip": str(host.private_ip),
        "machine": host.machine.name,
        "gpus": host.machine.gpus,
        "gpu_type": host.machine.gpu_type or "",
        "fabric": host.machine.fabric,
        "placement": host.placement,
        "capacity": capacity(plan, host),
    }


def capacity(plan: ClusterPlan, host: HostPlan) -> str:
    """Return the kind of a host's capacity, such as `spot`."""
    return plan.groups[host.group].capacity.kind if host.group is not None else "on_demand"


def _price(plan: ClusterPlan) -> dict[str, Any]:
    """Return the machines' prices. `dated` is the oldest price's date, or empty if no price is known."""
    price, used = hourly_price(plan), used_prices(plan)
    return {
        "usd": price.usd,
        "total": price.total,
        "unpriced": list(price.unpriced),
        "dated": min((row.dated for row in used), default=""),
        "regions": list(dict.fromkeys(row.region for row in used)),
        "sources": list(used_sources(plan)),
    }


def _storage(plan: ClusterPlan) -> dict[str, Any]:
    rate = storage_mib_s(plan)
    return {
        "kind": plan.storage.kind,
        "size_gib": plan.storage.size_gib,
        "write_mib_s": None if rate is None else round(rate, 1),
        "gpus": sum(host.machine.gpus for host in plan.nodes),
    }
