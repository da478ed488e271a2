"""Explains the limits of people and accounts that hold jobs back, and reports the used GPU hours and their cost."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from trainyard.errors import JobError
from trainyard.outputs import Cluster
from yard.show import counted, duration, say, say_json, table
from yard.stack.remote import Remote

_LIMITS = {
    "QOSGrpGRES": ("people", "gpus"),
    "QOSGrpGRESMinutes": ("people", "gpu_hours_per_month"),
    "AssocGrpBilling": ("accounts", "gpus"),
    "AssocGrpBillingMinutes": ("accounts", "gpu_hours_per_month"),
    "AssocMaxWallDurationPerJobLimit": ("people", "time"),
}
"""Mapping from Slurm's reason to the section and the key in `limits:`. components/node/people.py says which limits are
in a QOS. The reasons are the same in 21.08.5 to 24.11.5 (src/common, read 2026-11-26)."""
_REFUSED = re.compile(r"(?m)^sbatch: error: (\w+)$")
_SEPARATOR = "===limits==="
_SECONDS = 2


@dataclass(frozen=True, kw_only=True)
class Usage:
    """The GPU hours of a person's jobs in an account and a month, and their price in dollars, if it is known."""

    month: str
    user: str
    account: str
    gpu_hours: float
    usd: float | None


def is_limit(reason: str) -> bool:
    """Return whether Slurm's reason for a pending job is a limit of the stack file."""
    return reason in _LIMITS


def held(remote: Remote, jobs: Iterable[int]) -> dict[int, str]:
    """Return a mapping from job number to a sentence about its limit, for the jobs that wait because of a limit.

    Slurm needs a moment to find the reason for a new job, so the function waits for up to two seconds.
    """
    numbers = ",".join(map(str, jobs))
    squeue = f"squeue -h -j {numbers} -t PENDING -o '%A|%u|%a|%r'"
    wait = f'for _ in $(seq {2 * _SECONDS}); do rows=$({squeue}); [[ $rows == *"|None" ]] || break; sleep 0.5; done'
    rows, _, state = remote.run(f'{wait}; echo "$rows"; echo {_SEPARATOR}; {_STATE}').partition(_SEPARATOR)
    found = {}
    # Slurm 22.05 prints some other reasons as sentences.
    for job, user, account, reason in (row.split("|", 3) for row in rows.splitlines() if row):
        if is_limit(reason):
            found[int(job)] = _sentence(state, reason, user, [account])
    return found


def refusal(remote: Remote, user: str, error: str) -> str | None:
    """Return a sentence about the limit for which sbatch refused a user's job, or None if its error names no limit."""
    reason = next(filter(is_limit, _REFUSED.findall(error)), None)
    if reason is None:
        return None
    # The job's account is not known, because a script can choose it.
    state = remote.run(_STATE)
    return _sentence(state, reason, user, re.findall(rf" Account=(\S+) UserName={re.escape(user)}\(", state))


_STATE = "scontrol -o show assoc_mgr flags=assoc,qos"
"""Prints the limits and the usage that slurmctld knows. All users can run it."""


def _sentence(state: str, reason: str, user: str, accounts: Iterable[str]) -> str:
    section, key = _LIMITS[reason]
    if key == "time":
        found = [text for account in accounts if (text := _time(state, user, account))]
    elif section == "people":
        found = [_used(_line(state, f"QOS=person-{user}("), "gres/gpu", section, user, key)]
    else:
        lines = ((name, _line(state, f"Account={name} UserName= ")) for name in accounts)
        found = [_used(line, "billing", section, name, key) for name, line in lines]
    fix = "an operator can change the limit in the stack file"
    return "; ".join([*filter(None, found), fix])


def _line(state: str, start: str) -> str:
    return next((line for line in state.splitlines() if start in line), "")


def _used(line: str, tres: str, section: str, name: str, key: str) -> str:
    """Return a limit of the stack file with its usage, or "" if Slurm has no such limit."""

    def read(field: str) -> tuple[str, int]:
        found = re.search(rf" {field}=\S*?\b{tres}=(N|\d+)\((\d+)\)", line)
        return (found[1], int(found[2])) if found else ("N", 0)

    limit, used = read("GrpTRES" if key == "gpus" else "GrpTRESMins")
    if limit == "N":
        return ""
    setting = f"`limits.{section}.{name}.{key}`"
    if key == "gpus":
        return f"{setting} permits {counted(int(limit), 'GPU')} at once, and jobs of {name} are using {used}"
    rest = read("GrpTRESRunMins")[1]
    return (
        f"{setting} permits {int(limit) / 60:g}, of which jobs of {name} have used {used / 60:.1f} this month, and "
        f"running jobs need up to {rest / 60:.1f}"
    )


def _time(state: str, user: str, account: str) -> str:
    """Return the time limit of a user in an account, or "". It is the lower one of the user's and the account's."""
    own, shared = (
        re.search(r" MaxWallPJ=(\d+)", _line(state, start))
        for start in (f"Account={account} UserName={user}(", f"Account={account} UserName= ")
    )
    if own is None:
        return ""
    name = f"accounts.{account}" if shared and shared[1] == own[1] else f"people.{user}"
    return f"`limits.{name}.time` permits {duration(int(own[1]) * 60)}"


def show_usage(remote: Remote, month: str, as_json: bool) -> None:
    """Print the GPU hours of a month (YYYY-MM): a person's own ones, or everybody's for admins and operators."""
    stack = remote.stack
    if not stack.cluster.users:
        raise JobError(f"cluster '{stack.cluster.name}' has no people, so all jobs belong to one account")
    year, number = map(int, month.split("-"))
    end = f"{year + number // 12}-{number % 12 + 1:02}"
    report = f"Start={month}-01 End={end}-01 format=Account,Login,Used"
    text = remote.run(f"sreport -nP -t Seconds -T gres/gpu cluster AccountUtilizationByUser {report}")
    price = gpu_hour_usd(stack.cluster)
    rows = parse_usage(text, month, price)
    if stack.login and not stack.is_admin:
        rows = [row for row in rows if row.user == stack.user]
    if as_json:
        say_json([vars(row) for row in rows])
        return
    total = sum(row.gpu_hours for row in rows)
    shown = [(row.user, row.account, f"{row.gpu_hours:.1f}", _dollars(row.usd)) for row in rows]
    table(("USER", "ACCOUNT", "GPU HOURS", "COST"), [*shown, ("", "", f"{total:.1f}", _dollars(_usd(total, price)))])
    if price is None:
        say("the cost is unknown, because a machine's price is unknown or a Spot price")
    else:
        say(f"a GPU hour costs ${price:.2f}: the list price of all machines, divided by the number of their GPUs")
        say("not included: idle GPUs, jobs without GPUs, disks, shared storage, network traffic, discounts, taxes")
    say("Slurm counts full hours, so the current hour is missing")


def gpu_hour_usd(cluster: Cluster) -> float | None:
    """Return the list price of all current machines per hour and GPU in dollars, or None if it is unknown."""
    gpus = sum(node.gpus for node in cluster.nodes)
    return cluster.usd_per_hour / gpus if cluster.usd_per_hour is not None and gpus else None


def parse_usage(text: str, month: str, price: float | None) -> list[Usage]:
    """Return the rows `ACCOUNT|USER|SECONDS` of sreport, sorted by user. Rows without a user are sums of accounts."""
    found = []
    for account, user, seconds in (line.split("|") for line in text.splitlines() if line.count("|") == 2):  # noqa: PLR2004
        hours = round(int(seconds) / 3600, 2)
        if user and hours:
            found.append(Usage(month=month, user=user, account=account, gpu_hours=hours, usd=_usd(hours, price)))
    return sorted(found, key=lambda row: (row.user, row.account))


def _usd(hours: float, price: float | None) -> float | None:
    return None if price is None else round(hours * price, 2)


def _dollars(usd: float | None) -> str:
    return "" if usd is None else f"${usd:.2f}"
