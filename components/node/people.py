"""Renders the hand-over's files about people: their accounts, their keys, and the accounts in Slurm's accounting."""

from __future__ import annotations

from components.node.user_data import JOB_USER
from components.plan.plan import ClusterPlan
from components.spec.people import PEOPLE, accounts_of, gid_of

PEOPLE_GID = 2001
"""The gid of the people's primary group. The uids are in components/spec/people.py."""


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


def render_keys(plan: ClusterPlan, job_user_key: str) -> dict[str, str]:
    """Return a mapping from file in the hand-over to the public keys of the job user and of each person."""
    keys = {JOB_USER: (job_user_key.strip(),), **{user.name: user.ssh_keys for user in plan.users}}
    return {f"keys/{name}": "".join(f"{key}\n" for key in lines) for name, lines in keys.items()}


def render_accounts(plan: ClusterPlan) -> dict[str, str]:
    """Return sacctmgr's commands that create the accounts and their users, and the rows `ACCOUNT|USER` of all users.

    accounts.sh runs the commands on the head. They do not change accounts and users that exist. The job user belongs to
    the account of the people without accounts. An administrator in Slurm can cancel all jobs.
    """
    users = [(user.name, user.accounts or (PEOPLE,), user.admin) for user in plan.users]
    users.append((JOB_USER, (PEOPLE,), False))
    lines = [f"add cluster {plan.name}", f"add account {','.join([PEOPLE, *accounts_of(plan.users)])}"]
    for name, accounts, is_admin in users:
        level = "Administrator" if is_admin else "None"
        lines.append(f"add user {name} account={','.join(accounts)} defaultaccount={accounts[0]}")
        lines.append(f"modify user where name={name} set defaultaccount={accounts[0]} adminlevel={level}")
    rows = {f"{account}|{name}" for name, accounts, _ in users for account in accounts} | {"root|root"}
    return {
        "accounts/commands": "".join(f"{line}\n" for line in lines),
        "accounts/rows": "".join(f"{row}\n" for row in sorted(rows)),
    }
