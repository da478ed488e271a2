"""The hand-over's files about people."""

from __future__ import annotations

from components.node import people, slurm
from components.node.bundle import Bundle
from components.node.handover import Secrets, handover_files
from tests.components.stackfile.test_people import plan_of
from tests.people import person, public_key

ANN = person("ann", accounts=["vision", "nlp"])
BOB = person("bob", admin=True, uid=20000)


def test_hand_over_contains_people_groups_and_keys() -> None:
    plan = plan_of(ANN, BOB)
    secrets = Secrets(munge_key="bXVuZ2U=", cluster_key="cluster", user_public="ssh-ed25519 AAAA user@yard\n")
    files = handover_files(plan, {host.name: "key" for host in plan.hosts}, secrets, Bundle(archive=b"", digest=""))
    assert files["people"].decode() == (
        "group nlp 51270\ngroup vision 53852\nuser ann 23870 user vision,nlp\nuser bob 20000 admin -\n"
    )
    keys = {path: text.decode() for path, text in files.items() if path.startswith("keys/")}
    assert keys == {
        "keys/trainer": "ssh-ed25519 AAAA user@yard\n",
        "keys/ann": f"{public_key('a')}\n",
        "keys/bob": f"{public_key('b')}\n",
    }
    without = handover_files(
        plan_of(), {host.name: "key" for host in plan.hosts}, secrets, Bundle(archive=b"", digest="")
    )
    assert (without["people"], {path for path in without if path.startswith("keys/")}) == (b"", {"keys/trainer"})


def test_accounting_has_a_row_for_each_user_of_an_account() -> None:
    files = people.render_accounts(plan_of(ANN, BOB))
    assert files["accounts/rows"].split() == ["nlp|ann", "people|bob", "people|trainer", "root|root", "vision|ann"]
    assert files["accounts/commands"].splitlines() == [
        "add cluster yard",
        "add account people,nlp,vision",
        "add user ann account=vision,nlp defaultaccount=vision",
        "modify user where name=ann set defaultaccount=vision adminlevel=None",
        "add user bob account=people defaultaccount=people",
        "modify user where name=bob set defaultaccount=people adminlevel=Administrator",
        "add user trainer account=people defaultaccount=people",
        "modify user where name=trainer set defaultaccount=people adminlevel=None",
    ]


def test_slurm_conf_admits_people_only_with_users() -> None:
    with_people, without = (slurm.render_slurm_conf(plan_of(*users)) for users in ([ANN], []))
    assert "AccountingStorageEnforce=associations\n" in with_people
    assert " AllowGroups=trainer,people " in with_people
    assert "AccountingStorageEnforce" not in without
    assert " AllowGroups=trainer " in without
