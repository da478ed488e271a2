"""The parser for JSON output from the engine, and its errors."""

from __future__ import annotations

import json

from yard.preview.engine import Step, read_answer

OWN = "stacks/Pulumi.x.yaml:"
PARENT = "urn:pulumi:x::trainyard::trainyard:index:Cluster"


def answer(*steps: tuple[str, str], messages: tuple[tuple[str, str], ...] = ()) -> str:
    return json.dumps(
        {
            "steps": [
                {"op": op, "urn": f"{PARENT}${kind}", "newState": {"inputs": {"key": "private"}}} for op, kind in steps
            ],
            "diagnostics": [{"severity": severity, "message": message} for severity, message in messages],
        }
    )


def test_only_operations_types_and_names_are_kept() -> None:
    kind = "gcp:compute/instance:Instance"
    found = read_answer(
        0, answer(("create", f"{kind}::a"), ("replace", f"{kind}::b::c"), ("same", "t:i:T::d")), "", OWN
    )
    assert found.changes == (Step(op="create", type=kind, name="a"), Step(op="replace", type=kind, name="b::c"))
    assert found.by_operation == {"create": 1, "replace": 1, "same": 1}
    assert found.by_type == {kind: 2, "t:i:T": 1}
    assert found.errors == ()
    assert "private" not in repr(found)


def test_messages_of_this_project_are_omitted() -> None:
    messages = (
        ("warning", f"{OWN}cluster: x"),
        ("warning", "warning: offline: simulated"),
        ("warning", "warning: old plugin\n"),
    )
    assert read_answer(0, answer(messages=messages), "", OWN).warnings == ("old plugin",)


def test_errors_of_engine_and_program_are_reported() -> None:
    assert read_answer(255, answer(messages=(("error", "error: no quota"),)), "", OWN).errors == ("no quota",)
    died = (("info#err", "Traceback: no module\n"), ("error", "error: the program exited"), ("info", "all is well"))
    assert read_answer(255, answer(messages=died), "", OWN).errors == ("the program exited", "Traceback: no module")
    assert read_answer(255, answer(), "warning: a\nerror: the passphrase is wrong\n", OWN).errors == (
        "the passphrase is wrong",
    )
    assert read_answer(-9, "", "", OWN).errors == ("pulumi ended with exit code -9",)
    assert read_answer(0, "not JSON", "", OWN).errors == ("not JSON",)


def test_a_false_alarm_at_shutdown_is_not_an_error() -> None:
    message = "error: Detected that /plugins/pulumi-resource-command exited prematurely. \n  This is *always* a bug"
    assert read_answer(0, answer(messages=(("error", message),)), "", OWN).errors == ()
    assert len(read_answer(255, answer(messages=(("error", message),)), "", OWN).errors) == 1
