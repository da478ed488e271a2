"""Host keys in the stack's state."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from components.host_keys import Known, Offer, _Provider, fingerprint, merged_keys
from trainyard.errors import PlatformError
from trainyard.machines import ACCEPT
from trainyard.outputs import HOST_KEY


def key(letter: str) -> str:
    return f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{letter * 43}"


def reported(name: str, machine: str, text: str, *, declared: bool = False) -> dict[str, Any]:
    return {"name": name, "machine": machine, "key": text, "declared": declared}


A, B = reported("yard-head", "id-1", key("a")), reported("yard-gpu-0", "id-2", key("b"))
KNOWN = {offer["name"]: {"machine": offer["machine"], "key": offer["key"]} for offer in (A, B)}


@pytest.mark.parametrize(
    ("known", "worker", "stored"),
    [
        ({}, B, KNOWN["yard-gpu-0"]),
        (KNOWN, B, KNOWN["yard-gpu-0"]),
        # An evicted machine reports no key.
        (KNOWN, reported("yard-gpu-0", "id-2", ""), KNOWN["yard-gpu-0"]),
        # A replaced machine, a key in the stack file, and a key with a comment.
        (KNOWN, reported("yard-gpu-0", "id-3", key("c")), {"machine": "id-3", "key": key("c")}),
        (KNOWN, reported("yard-gpu-0", "id-2", key("c"), declared=True), {"machine": "id-2", "key": key("c")}),
        ({}, reported("yard-gpu-0", "id-2", f"{key('c')} root@host"), {"machine": "id-2", "key": key("c")}),
    ],
)
def test_stores_the_first_key_of_each_machine(known: Known, worker: Offer, stored: dict[str, str]) -> None:
    assert merged_keys(known, [A, worker], []) == {"yard-head": KNOWN["yard-head"], "yard-gpu-0": stored}
    assert list(merged_keys(known, [A], [])) == ["yard-head"]


def test_accepts_exactly_the_named_key() -> None:
    changed = [A, reported("yard-gpu-0", "id-2", key("c"))]
    assert merged_keys(KNOWN, changed, [fingerprint(key("c"))])["yard-gpu-0"]["key"] == key("c")
    new = re.escape(fingerprint(key("c")))
    for accepted in ([], [fingerprint(key("b")), "yard-gpu-0"]):
        with pytest.raises(PlatformError, match=rf"yard-gpu-0 \({new}\): .* has changed .*--config {ACCEPT}={new}`"):
            merged_keys(KNOWN, changed, accepted)


def test_names_all_machines_without_a_key() -> None:
    offers = [reported("yard-head", "id-1", ""), reported("yard-gpu-0", "id-3", "")]
    with pytest.raises(PlatformError, match="no SSH host key is known for yard-head, yard-gpu-0") as refused:
        merged_keys({**KNOWN, "yard-head": {"machine": "id-0", "key": key("a")}}, offers, [])
    assert "Fix: " in str(refused.value)


@pytest.mark.parametrize("text", [f"{key('c')}\n", "ssh-ed25519 AAAAshort", f"@cert-authority {key('c')}", "offline"])
def test_refuses_malformed_keys(text: str) -> None:
    with pytest.raises(PlatformError, match="yard-gpu-0: the SSH host key is not one line"):
        merged_keys({}, [A, reported("yard-gpu-0", "id-2", text)], [])


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_accepts_keys_generated_by_openssh(kind: str, tmp_path: Path) -> None:
    bits = {"rsa": ["-b", "2048"]}.get(kind, [])
    made = ["ssh-keygen", "-q", "-t", kind, *bits, "-N", "", "-C", "", "-f", str(tmp_path / "key")]
    subprocess.run(made, check=True)
    public = (tmp_path / "key.pub").read_text().strip()
    assert HOST_KEY.fullmatch(public)
    listed = subprocess.run(["ssh-keygen", "-lf", tmp_path / "key"], check=True, capture_output=True, text=True).stdout
    assert fingerprint(public) in listed.split()


def test_only_an_update_refuses_a_changed_key() -> None:
    """An error in `diff` would abort a preview. The engine's tests check the other operations."""
    outs = {"cluster": "yard", "offers": [A, B], "accepted": [], "known": KNOWN}
    attack = outs | {"offers": [reported("yard-head", "id-1", key("x")), B], "known": None}
    assert _Provider().diff("id", outs, attack).changes is True
