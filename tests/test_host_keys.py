"""Which host keys the stack keeps: the first of each machine, until a person accepts another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from components.errors import PlatformError
from components.host_key_format import HOST_KEY
from components.host_keys import ACCEPT, _Provider, merged


def key(letter: str) -> str:
    return f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{letter * 43}"


def offer(name: str, machine: str, text: str, *, declared: bool = False) -> dict[str, Any]:
    return {"name": name, "machine": machine, "key": text, "declared": declared}


A, B = offer("yard-head", "id-1", key("a")), offer("yard-gpu-0", "id-2", key("b"))
KNOWN = {
    "yard-head": {"machine": "id-1", "key": key("a")},
    "yard-gpu-0": {"machine": "id-2", "key": key("b")},
}


def test_the_first_keys_are_kept() -> None:
    assert merged({}, [A, B], []) == KNOWN
    assert merged(KNOWN, [A, B], []) == KNOWN


def test_a_machine_that_is_gone_is_forgotten() -> None:
    assert merged(KNOWN, [A], []) == {"yard-head": KNOWN["yard-head"]}


def test_a_known_machine_may_answer_nothing() -> None:
    assert merged(KNOWN, [A, offer("yard-gpu-0", "id-2", "")], []) == KNOWN


def test_a_new_machine_of_the_same_name_has_a_new_key() -> None:
    new = merged(KNOWN, [A, offer("yard-gpu-0", "id-3", key("c"))], [])
    assert new["yard-gpu-0"] == {"machine": "id-3", "key": key("c")}


def test_a_changed_key_of_the_same_machine_is_refused() -> None:
    with pytest.raises(PlatformError, match=f"yard-gpu-0: .* has changed .*{ACCEPT}=yard-gpu-0"):
        merged(KNOWN, [A, offer("yard-gpu-0", "id-2", key("c"))], [])


def test_a_person_can_accept_a_changed_key() -> None:
    changed = [A, offer("yard-gpu-0", "id-2", key("c"))]
    assert merged(KNOWN, changed, ["yard-gpu-0"])["yard-gpu-0"]["key"] == key("c")
    with pytest.raises(PlatformError):
        merged(KNOWN, changed, ["yard-head"])


def test_a_declared_key_always_counts() -> None:
    changed = [A, offer("yard-gpu-0", "id-2", key("c"), declared=True)]
    assert merged(KNOWN, changed, [])["yard-gpu-0"]["key"] == key("c")


def test_every_machine_without_a_key_is_in_one_message() -> None:
    offers = [offer("yard-head", "id-1", ""), offer("yard-gpu-0", "id-3", "")]
    with pytest.raises(PlatformError, match="no SSH host key is known of yard-head, yard-gpu-0") as refused:
        merged({**KNOWN, "yard-head": {"machine": "id-0", "key": key("a")}}, offers, [])
    assert "Fix: " in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        f"{key('c')}\n@cert-authority * {key('d')}",
        f"{key('c')}\n",
        "ssh-ed25519 AAAAshort",
        f"@cert-authority {key('c')}",
        "offline",
        f"ssh-ed25519  {key('c')}",
    ],
)
def test_text_that_is_no_single_key_is_refused(text: str) -> None:
    with pytest.raises(PlatformError, match="yard-gpu-0: the SSH host key is not one line"):
        merged({}, [A, offer("yard-gpu-0", "id-2", text)], [])


def test_a_comment_is_dropped() -> None:
    assert merged({}, [offer("yard-head", "id-1", f"{key('a')} root@host")], [])["yard-head"]["key"] == key("a")


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_keys_made_by_openssh_are_keys(kind: str, tmp_path: Path) -> None:
    bits = {"rsa": ["-b", "2048"]}.get(kind, [])
    made = ["ssh-keygen", "-q", "-t", kind, *bits, "-N", "", "-C", "", "-f", str(tmp_path / "key")]
    subprocess.run(made, check=True)
    assert HOST_KEY.fullmatch((tmp_path / "key.pub").read_text().strip())


def test_the_resource_changes_only_with_the_kept_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "tracebacklimit", 1000, raising=False)
    provider, inputs = _Provider(), {"cluster": "yard", "offers": [A, B], "accepted": []}
    outs = provider.create({**inputs, "known": None}).outs
    assert outs is not None
    assert outs["known"] == KNOWN
    silent = {**inputs, "offers": [A, offer("yard-gpu-0", "id-2", "")], "known": None}
    assert provider.diff("id", outs, silent).changes is False
    fewer = {**inputs, "offers": [A], "known": None}
    assert provider.diff("id", outs, fewer).changes is True
    updated = provider.update("id", outs, fewer).outs
    assert updated is not None
    assert list(updated["known"]) == ["yard-head"]
    # A changed key makes an update, and the update reports it: an error of a diff would end a preview.
    attack = {**inputs, "offers": [offer("yard-head", "id-1", key("x")), B], "known": None}
    assert provider.diff("id", outs, attack).changes is True
    with pytest.raises(PlatformError, match="yard-head"):
        provider.update("id", outs, attack)
