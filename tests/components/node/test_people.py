"""The hand-over's files about people."""

from __future__ import annotations

from typing import Any

from components.node import people, slurm
from components.node.bundle import Bundle
from components.node.handover import handover_files
from components.node.user_data import Login
from components.plan.plan import ClusterPlan
from tests.components.stackfile.test_people import plan_of
from tests.people import HANDED_OVER, person, public_key

ANN = person("ann", accounts=["vision", "nlp"])
BOB = person("bob", admin=True, uid=20000)


AUTHORITY = public_key("z")


def handed_over(plan: ClusterPlan) -> dict[str, bytes]:
    return handover_files(plan, {host.name: "key" for host in plan.hosts}, HANDED_OVER, Bundle(archive=b"", digest=""))


def keys_of(files: dict[str, bytes]) -> dict[str, str]:
    return {path: text.decode() for path, text in files.items() if path.startswith("keys/")}


def test_hand_over_contains_people_groups_and_keys() -> None:
    files = handed_over(plan_of(ANN, BOB))
    assert files["people"].decode() == (
        "group nlp 51270\ngroup vision 53852\nuser ann 23870 user vision,nlp\nuser bob 20000 admin -\n"
    )
    keys = keys_of(files)
    admin = keys.pop("keys/ops")
    assert keys == {
        "keys/trainer": "ssh-ed25519 AAAAuser user@yard\n",
        "keys/ann": f"{public_key('a')}\n",
        "keys/bob": f"{public_key('b')}\n",
    }
    # Besides admins, only the certificates of the current keys permit logins as ops.
    assert admin == (
        "restrict ssh-ed25519 AAAAauthority\n"
        'cert-authority,principals="admin-ab0d9fc5ce19" ssh-ed25519 AAAAauthority\n'
        f'restrict,from="10.77.0.4",cert-authority,principals="{Login.HEAD.principal("x AAAAcluster")}" '
        f"ssh-ed25519 AAAAauthority\n{public_key('b')}\n"
    )
    without = handed_over(plan_of())
    assert (without["people"], set(keys_of(without))) == (b"", {"keys/trainer", "keys/ops"})


def test_a_certificate_permits_only_the_person_that_it_names() -> None:
    without_key = {**ANN, "ssh_keys": []}
    keys = keys_of(handed_over(plan_of(without_key, BOB, ssh={"ca": AUTHORITY})))
    assert keys["keys/ann"] == f'cert-authority,principals="ann" {AUTHORITY}\n'
    assert keys["keys/bob"] == f'{public_key("b")}\ncert-authority,principals="bob" {AUTHORITY}\n'
    assert keys["keys/ops"].endswith(f'\n{public_key("b")}\ncert-authority,principals="bob" {AUTHORITY}\n')
    assert AUTHORITY not in keys["keys/trainer"]
    assert keys["keys/ops"].count(AUTHORITY) == 1


def test_the_database_password_is_only_in_slurmdbd_conf() -> None:
    files = handed_over(plan_of())
    assert [path for path, text in files.items() if b"SECRETOFTHEDATABASE" in text] == ["slurm/slurmdbd.conf"]
    assert files["slurm/slurmdbd.conf"].endswith(b"\nStoragePass=SECRETOFTHEDATABASE\n")


def test_accounting_has_a_row_for_each_user_of_an_account() -> None:
    files = people.render_accounts(plan_of(ANN, BOB))
    assert files["accounts/rows"].split() == ["nlp|ann", "people|bob", "root|root", "trainer|trainer", "vision|ann"]
    assert files["accounts/commands"].splitlines() == [
        "add cluster yard",
        "add account people,nlp,vision,trainer",
        "add user ann account=vision,nlp defaultaccount=vision",
        "modify user where name=ann set defaultaccount=vision adminlevel=None",
        "add user bob account=people defaultaccount=people",
        "modify user where name=bob set defaultaccount=people adminlevel=Administrator",
        "add user trainer account=trainer defaultaccount=trainer",
        "modify user where name=trainer set defaultaccount=trainer adminlevel=None",
        "add qos person-ann",
        "add qos person-bob",
    ]


NONE = "grptres={0}=-1 grptresmins={0}=-1 maxwall=-1"


def limits_of(limits: dict[str, Any]) -> list[str]:
    return people.render_accounts(plan_of(ANN, BOB, limits=limits))["accounts/limits"].splitlines()


def test_each_limit_is_set_or_removed() -> None:
    unlimited = [
        *(f"modify account where name={name} set fairshare=1 {NONE.format('billing')}" for name in ("people", "nlp")),
        f"modify account where name=vision set fairshare=1 {NONE.format('billing')}",
        "modify qos where name=person-ann set flags=DenyOnLimit grptres=gres/gpu=-1 grptresmins=gres/gpu=-1",
        "modify user where name=ann account=vision set fairshare=1 qos=person-ann defaultqos=person-ann maxwall=-1",
        "modify user where name=ann account=nlp set fairshare=1 qos=person-ann defaultqos=person-ann maxwall=-1",
        "modify qos where name=person-bob set flags=DenyOnLimit grptres=gres/gpu=-1 grptresmins=gres/gpu=-1",
        "modify user where name=bob account=people set fairshare=1 qos=person-bob defaultqos=person-bob maxwall=-1",
    ]
    assert limits_of({}) == unlimited
    ann = {"gpus": 2, "gpu_hours_per_month": 10, "time": "2h", "priority": 3}
    found = limits_of({"people": {"ann": ann}, "accounts": {"nlp": {**ann, "time": "30m", "gpus": 0}}})
    assert [line for line in found if line not in unlimited] == [
        "modify account where name=nlp set fairshare=3 grptres=billing=0 grptresmins=billing=600 maxwall=30",
        "modify qos where name=person-ann set flags=DenyOnLimit grptres=gres/gpu=2 grptresmins=gres/gpu=600",
        "modify user where name=ann account=vision set fairshare=3 qos=person-ann defaultqos=person-ann maxwall=120",
        "modify user where name=ann account=nlp set fairshare=3 qos=person-ann defaultqos=person-ann maxwall=30",
    ]


def test_a_persons_limits_replace_those_of_each_person() -> None:
    default = {"gpus": 4, "time": "1d", "gpu_hours_per_month": 100}
    limits = plan_of(ANN, limits={"each_person": default, "people": {"ann": {"gpus": 2, "time": None}}}).limits
    assert limits.of_person("ann").model_dump() == {**default, "gpus": 2, "time": None, "priority": 1}
    assert limits.of_person("bob").minutes == 24 * 60


def test_slurm_conf_admits_people_only_with_users() -> None:
    with_people, without = (slurm.render_slurm_conf(plan_of(*users)) for users in ([ANN], []))
    assert "AccountingStorageEnforce=limits,qos,safe\n" in with_people
    assert "PriorityDecayHalfLife=0\n" in with_people
    assert with_people.count(" TRESBillingWeights=GRES/gpu=1\n") == 1
    assert "Priority" not in without
    assert "TRESBillingWeights" not in without
    assert " AllowGroups=trainer,people " in with_people
    assert "AccountingStorageEnforce" not in without
    assert " AllowGroups=trainer " in without
