"""The engine's JSON: what is taken from it, and that a failure is never mistaken for a plan."""

from __future__ import annotations

import json

from jobs.preview.resources import Step, read_answer

OWN = "stacks/Pulumi.x.yaml:"
PARENT = "urn:pulumi:x::trainyard::trainyard:index:Cluster"


def answer(*steps: tuple[str, str], said: tuple[tuple[str, str], ...] = ()) -> str:
    return json.dumps(
        {
            "steps": [
                {"op": op, "urn": f"{PARENT}${kind}", "newState": {"inputs": {"key": "private"}}} for op, kind in steps
            ],
            "diagnostics": [{"severity": severity, "message": message} for severity, message in said],
        }
    )


def test_operations_types_and_names_and_nothing_else() -> None:
    kind = "gcp:compute/instance:Instance"
    found = read_answer(
        0, answer(("create", f"{kind}::a"), ("replace", f"{kind}::b::c"), ("same", "t:i:T::d")), "", OWN
    )
    assert found.changes == (Step(op="create", type=kind, name="a"), Step(op="replace", type=kind, name="b::c"))
    assert found.by_operation == {"create": 1, "replace": 1, "same": 1}
    assert found.by_type == {kind: 2, "t:i:T": 1}
    assert found.errors == ()
    assert "private" not in repr(found)


def test_our_own_remarks_are_not_said_twice() -> None:
    said = (
        ("warning", f"{OWN}cluster: x"),
        ("warning", "warning: offline: simulated"),
        ("warning", "warning: old plugin\n"),
    )
    assert read_answer(0, answer(said=said), "", OWN).warnings == ("old plugin",)


def test_errors_of_the_engine_and_of_the_program() -> None:
    assert read_answer(255, answer(said=(("error", "error: no quota"),)), "", OWN).errors == ("no quota",)
    died = (("info#err", "Traceback: no module\n"), ("error", "error: the program exited"), ("info", "all is well"))
    assert read_answer(255, answer(said=died), "", OWN).errors == ("the program exited", "Traceback: no module")
    assert read_answer(255, answer(), "warning: a\nerror: the passphrase is wrong\n", OWN).errors == (
        "the passphrase is wrong",
    )
    assert read_answer(-9, "", "", OWN).errors == ("pulumi ended with exit code -9",)
    assert read_answer(0, "not JSON", "", OWN).errors == ("not JSON",)
