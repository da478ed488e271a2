"""Renders the hand-over's files about people: their accounts, keys and limits, and Slurm's accounts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from components.node.user_data import ADMIN_USER, JOB_USER
from components.plan.plan import ClusterPlan
from components.spec.people import PEOPLE, FairUseSpec, accounts_of, gid_of

PEOPLE_GID = 2001
"""The gid of the people's primary group. The uids are in components/spec/people.py."""
QOS = "person-"
"""Before the name of a person, the name of the QOS that counts this person's GPUs (yard/run/fair_use.py)."""


def render_people(plan: ClusterPlan) -> str:
    """Return the groups and the people, which stage 66-people creates on every node.

    The lines are `group NAME GID` and `user NAME UID ROLE GROUPS`, in which GROUPS can be "-".
    """
    groups = "".join(f"group {account} {gid_of(account)}\n" for account in accounts_of(plan.users))
    users = "".join(
        f"user {user.name} {user.number} {'admin' if user.admin else 'user'} {','.join(user.accounts) or '-'}\n"
        for user in plan.users
    )
    return groups + users


def render_keys(plan: ClusterPlan, accounts: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return a mapping from file in the hand-over to the lines of an account's authorized_keys.

    `accounts` contains the lines of the accounts that are not people's. The people can also log in with a certificate
    of `ssh.ca` that has their name as principal. The keys of admins also permit logins as ADMIN_USER, because people's
    own accounts have no sudo rights: root on a worker can change the files in their homes.
    """
    people = {user.name: [*user.ssh_keys, *_authority(plan, user.name)] for user in plan.users}
    admins = [line for user in plan.users if user.admin for line in people[user.name]]
    keys = {**people, **accounts, ADMIN_USER: [*accounts[ADMIN_USER], *admins]}
    return {f"keys/{name}": "".join(f"{key}\n" for key in lines) for name, lines in keys.items()}


def _authority(plan: ClusterPlan, name: str) -> list[str]:
    return [f'cert-authority,principals="{name}" {plan.ssh_ca}'] if plan.ssh_ca else []


def render_accounts(plan: ClusterPlan) -> dict[str, str]:
    """Return sacctmgr's commands that create the accounts and their users, the rows `ACCOUNT|USER` of all users, and
    sacctmgr's commands that set all limits.

    accounts.sh runs the commands on the head. The first ones do not change accounts and users that exist. The job user
    has an own account without limits, because `pulumi up` runs its jobs. An administrator in Slurm can cancel all jobs.
    """
    users = [(user.name, user.accounts or (PEOPLE,), user.admin) for user in plan.users]
    shared = [PEOPLE, *accounts_of(plan.users)]
    lines = [f"add cluster {plan.name}", f"add account {','.join([*shared, JOB_USER])}"]
    for name, accounts, is_admin in [*users, (JOB_USER, (JOB_USER,), False)]:
        level = "Administrator" if is_admin else "None"
        lines.append(f"add user {name} account={','.join(accounts)} defaultaccount={accounts[0]}")
        lines.append(f"modify user where name={name} set defaultaccount={accounts[0]} adminlevel={level}")
    lines += [f"add qos {QOS}{name}" for name, *_ in users]
    rows = {f"{account}|{name}" for name, accounts, _ in users for account in accounts}
    return {
        "accounts/commands": _lines(lines),
        "accounts/rows": _lines(sorted(rows | {f"{JOB_USER}|{JOB_USER}", "root|root"})),
        "accounts/limits": _lines(_limits(plan, shared)),
    }


def _limits(plan: ClusterPlan, accounts: Sequence[str]) -> Iterator[str]:
    """Yield the commands that set the limits of accounts and people. -1 removes a limit.

    A person can have several accounts, so a person's GPUs are counted in a QOS, which only this person can use. If a
    QOS limits a TRES, Slurm ignores the same kind of limit on that TRES in an account (_validate_tres_usage_limits in
    slurmctld/acct_policy.c of 24.11.5, read 2026-11-26). Accounts therefore limit the TRES `billing`, which is a job's
    number of GPUs (slurm.py). An account's time limit applies only to users who have none (the same file,
    _acct_policy_validate), so users get the lower one. Tried with 22.05.8, 23.11.4 and 24.11.5 on 2026-11-26.
    """
    for account in accounts:
        limits = plan.limits.accounts.get(account, FairUseSpec())
        share = f"fairshare={limits.priority} {_counted('billing', limits)} {_wall(limits)}"
        yield f"modify account where name={account} set {share}"
    for user in plan.users:
        limits, qos = plan.limits.of_person(user.name), f"{QOS}{user.name}"
        # DenyOnLimit: a job that can never start is refused at once, also because of its account's limits.
        yield f"modify qos where name={qos} set flags=DenyOnLimit {_counted('gres/gpu', limits)}"
        for account in user.accounts or (PEOPLE,):
            wall = _wall(limits, plan.limits.accounts.get(account, FairUseSpec()))
            share = f"fairshare={limits.priority} qos={qos} defaultqos={qos} {wall}"
            yield f"modify user where name={user.name} account={account} set {share}"


def _counted(tres: str, limits: FairUseSpec) -> str:
    gpus, hours = (-1 if limit is None else limit for limit in (limits.gpus, limits.gpu_hours_per_month))
    return f"grptres={tres}={gpus} grptresmins={tres}={max(-1, hours * 60)}"


def _wall(*limits: FairUseSpec) -> str:
    return f"maxwall={min((each.minutes for each in limits if each.minutes is not None), default=-1)}"


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
