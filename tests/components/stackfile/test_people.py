"""The section `users:`: its rules, and uids that do not depend on other people."""

from __future__ import annotations

import base64
import re
from typing import Any

import pytest

from components.keys import ssh_keypair
from components.node.user_data import ADMIN_UID, JOB_UID
from components.plan.plan import ClusterPlan
from components.spec.people import FIRST_GID, FIRST_UID, LAST_GID, LAST_UID, derived_id, gid_of
from components.stackfile.read import parse_stack
from tests.components.platforms.recording import stack_text
from tests.people import person, public_key
from trainyard.errors import StackFileError

TWINS = ("user-51", "user-70")
"""Two names with the same derived uid."""


def plan_of(*users: dict[str, Any], stack: str = "local", **edits: Any) -> ClusterPlan:
    return parse_stack(stack_text(stack, users=list(users), **edits), "test").plan


def problems(*users: dict[str, Any], **edits: Any) -> list[str]:
    """Return the problems of a stack file with these users, as lines without the file's name."""
    with pytest.raises(StackFileError) as caught:
        plan_of(*users, **edits)
    assert "hunter2" not in str(caught.value)
    return [problem.line("").removeprefix(":cluster.users.") for problem in caught.value.problems]


def test_uids_do_not_depend_on_other_people() -> None:
    names = [f"person{number}" for number in range(9)]
    together = {
        user.name: user.number
        for user in plan_of(*({**person(n), "ssh_keys": [public_key(n[-1])]} for n in names)).users
    }
    for name in names:
        assert [user.number for user in plan_of(person(name)).users] == [together[name]]
    # Existing clusters have these uids, so the function must not change.
    assert derived_id("ann", FIRST_UID, LAST_UID) == 23870
    assert gid_of("vision") == 53852


def test_ids_are_in_ranges_that_nothing_else_uses() -> None:
    numbers = [derived_id(f"n{number}", FIRST_UID, LAST_UID) for number in range(2000)]
    assert FIRST_UID <= min(numbers) < FIRST_UID + 100
    assert LAST_UID - 100 < max(numbers) <= LAST_UID
    assert not {JOB_UID, ADMIN_UID} & set(range(FIRST_UID, LAST_GID + 1))
    assert LAST_UID < FIRST_GID


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("name", "Ann", "must be 1 to 31 lowercase letters, digits, '-' and '_', beginning with a letter"),
        ("name", "../ann", "must be 1 to 31 lowercase letters"),
        ("name", "a" * 32, "must be 1 to 31 lowercase letters"),
        *(
            ("name", name, f"'{name}' is reserved")
            for name in ("root", "trainer", "ops", "people", "systemd-x", "slurm")
        ),
        ("accounts", ["root"], "'root' is reserved"),
        ("accounts", ["Vision"], "must be 1 to 31 lowercase letters"),
        ("uid", JOB_UID, "must be a whole number from 10000 to 49999"),
        ("uid", 50000, "must be a whole number from 10000 to 49999"),
        ("uid", "12345", "write it without quotes"),
        ("ssh_keys", [], "needs at least one public key"),
        ("ssh_keys", ["hunter2"], "must be a line with an OpenSSH public key"),
        ("ssh_keys", ["ssh-ed25519 AAAAhunter2hunter2"], "must be a line with an OpenSSH public key"),
        ("ssh_keys", [f'command="hunter2" {public_key("a")}'], "of one of these types, without options"),
        ("ssh_keys", [f"{public_key('a')}\n{public_key('b')}"], "must be a line with"),
        ("ssh_keys", [public_key("a").replace("ssh-ed25519 ", "ssh-rsa ")], "must be a line with"),
    ],
)
def test_a_wrong_value_is_refused(key: str, value: object, message: str) -> None:
    [problem] = problems({**person("ann"), key: value})
    assert message in problem
    assert problem.startswith("0." if key in {"name", "uid"} else f"0.{key}")


def test_an_authority_replaces_keys_and_needs_people() -> None:
    authority = {"ca": public_key("z")}
    assert plan_of({"name": "ann"}, ssh=authority).ssh_ca == public_key("z")
    [problem] = problems(ssh=authority)
    assert ":cluster.ssh.ca: permits logins of people, and this cluster has no `users`" in problem
    [problem] = problems(person("ann"), ssh={"ca": f"cert-authority {public_key('z')}"})
    assert "of one of these types, without options" in problem


def test_a_private_key_is_refused_without_printing_it() -> None:
    private, _ = ssh_keypair("ann")
    with pytest.raises(StackFileError) as caught:
        plan_of({**person("ann"), "ssh_keys": [private]})
    assert "is a private key, and everyone who can read this file can now use it" in str(caught.value)
    assert not set(private.splitlines()) & set(re.split(r"[\s'\"]+", str(caught.value)))


@pytest.mark.parametrize("kind", ["ssh-rsa", "ecdsa-sha2-nistp256", "sk-ssh-ed25519@openssh.com"])
def test_other_types_of_keys_are_accepted(kind: str) -> None:
    body = base64.b64encode(len(kind).to_bytes(4, "big") + kind.encode() + bytes(64)).decode()
    assert plan_of({"name": "ann", "ssh_keys": [f"{kind} {body}"]}).users[0].ssh_keys == (f"{kind} {body}",)


def test_all_conflicts_are_listed() -> None:
    found = problems(
        person("ann", uid=12345),
        person("ann"),
        person("bob", uid=12345),
        {**person("carl"), "ssh_keys": [public_key("a")]},
    )
    fixes = ("remove or rename one of them", "write a different `uid:` from 10000 to 49999", "use a separate key")
    rules = ("1.name: users.0 has the same name", "2.uid: bob and ann have the same uid, 12345")
    for line, rule, fix in zip(found, (*rules, "3.ssh_keys.0: ann has the same key"), fixes, strict=True):
        assert line.startswith(f"{rule}. Fix: {fix}")


def test_names_with_the_same_uid_need_an_explicit_uid() -> None:
    one, two = ({"name": name, "ssh_keys": [public_key(name[-1])]} for name in TWINS)
    [problem] = problems(one, two)
    assert f"{TWINS[1]} and {TWINS[0]} have the same uid" in problem
    assert plan_of(one, {**two, "uid": 20000}).users[1].number == 20000


def test_people_need_slurm_and_machines_of_the_platform() -> None:
    assert "this cluster has no scheduler" in problems(person("ann"), scheduler="none")[0]
    assert "existing hosts have accounts of their owner" in problems(person("ann"), stack="baremetal-h100")[0]


def test_limits_name_people_and_accounts_that_exist() -> None:
    names = {"people": ("ann", "anne", "zoe"), "accounts": ("people", "visoin", "x")}
    wrong = {key: {name: {"gpus": 2} for name in each} for key, each in names.items()}
    assert problems(person("ann", accounts=["vision"]), limits=wrong) == [
        ":cluster.limits.people.anne: no user has this name. Fix: write ann.",
        ":cluster.limits.people.zoe: no user has this name. Fix: use one of ann.",
        ":cluster.limits.accounts.visoin: no user's account has this name. Fix: write vision.",
        ":cluster.limits.accounts.x: no user's account has this name. Fix: use one of people, vision.",
    ]
    limits: dict[str, Any] = {
        "each_person": {"gpus": 2},
        "people": {"ann": {"gpus": 2}},
        "accounts": {"vision": {"gpus": 2}},
    }
    found = problems(limits=limits)
    assert [line.partition(":")[0] for line in (each.removeprefix(":") for each in found)] == [
        f"cluster.limits.{key}" for key in ("each_person", "people.ann", "accounts.vision")
    ]
    assert all("this cluster has no people. Fix: remove it, or add `users`" in line for line in found)


def test_all_wrong_limits_are_listed() -> None:
    wrong = {"gpus": -1, "gpu_hours_per_month": "10", "time": "2 days", "priority": 0, "gpu": 1}
    found = problems(person("ann"), limits={"people": {"ann": wrong, "Zoe": {}}})
    for key, rule in (
        ("ann.gpus", "must be a whole number from 0 to 10000000"),
        ("ann.gpu_hours_per_month", "write it without quotes"),
        ("ann.time", "must be a number of minutes, hours or days, such as 30m, 12h or 2d. Fix: write"),
        ("ann.priority", "must be a whole number from 1 to 10000"),
        ("ann.gpu", "write gpus instead"),
        ("Zoe", "must be 1 to 31 lowercase letters"),
    ):
        assert any(line.startswith(f":cluster.limits.people.{key}") and rule in line for line in found), (key, found)
