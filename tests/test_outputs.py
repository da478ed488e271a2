"""The outputs contract: what it accepts, and what it shows to people. What `yard` reads of it is tested with yard."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from components.errors import ContractError
from components.outputs import ClusterOutputs, HeadOut, NodeOut, dumped, read_outputs, ssh_command
from tests.tunnel_programs import BASTION, IAP

HOST_KEY = f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{'k' * 43}"
HEAD = {"address": "203.0.113.7", "port": 22, "admin_user": "ops", "proxy_jump": None}
OPTION = "\n  ProxyCommand touch /tmp/taken"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ["ssh", "-p", "22", "ops@203.0.113.7"]),
        ({"port": 22100, "address": "127.0.0.1"}, ["ssh", "-p", "22100", "ops@127.0.0.1"]),
        ({"proxy_jump": "ops@bastion:2222"}, ["ssh", "-J", "ops@bastion:2222", "-p", "22", "ops@203.0.113.7"]),
        ({"tunnel": BASTION}, ["yard", "ssh", "--admin", "--stack", "prod"]),
    ],
)
def test_the_ssh_command_is_one_that_ssh_understands(change: dict[str, object], words: list[str]) -> None:
    assert shlex.split(ssh_command(HEAD | change, "prod")) == words


def contract() -> dict[str, Any]:
    """Return outputs in which every field that reaches ssh's configuration has a value."""
    head = HeadOut(
        name="yard-head",
        address="127.0.0.1",
        port=22200,
        private_ip="10.77.0.4",
        user="trainer",
        admin_user="ops",
        host_key=HOST_KEY,
        proxy_jump="ops@bastion.example.org:2222",
        tunnel=tuple(BASTION),
    )
    node = NodeOut(
        name="yard-gpu-0",
        private_ip="10.77.2.1",
        group="gpu",
        gpus=8,
        gpu_type="h100",
        fabric="ethernet",
        host_key=HOST_KEY,
        address="203.0.113.8",
    )
    outputs = ClusterOutputs(
        name="yard",
        provider="azure",
        scheduler="slurm",
        head=head,
        nodes=(node,),
        env={},
        thresholds={},
        usd_per_hour=None,
    )
    return dumped(outputs)


def test_sound_outputs_are_read_back() -> None:
    assert dumped(read_outputs(contract())) == contract()


@pytest.mark.parametrize("place", ["head", "node"])
@pytest.mark.parametrize("suffix", [OPTION, "\n", "\r", " -oProxyCommand=x", '"', "\0", "$(x)", "`x`"])
def test_no_field_can_add_a_line_or_an_option(place: str, suffix: str) -> None:
    sound = contract()
    part = sound["head"] if place == "head" else sound["nodes"][0]
    # Every text of the host but the names of hardware, which no file of ssh holds.
    for field in sorted(part.keys() - {"gpus", "gpu_type", "fabric", "port"}):
        changed = contract()
        target = changed["head"] if place == "head" else changed["nodes"][0]
        value = target[field]
        target[field] = [*value[:-1], value[-1] + suffix] if isinstance(value, list) else value + suffix
        with pytest.raises(ContractError, match=field):
            read_outputs(changed)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("address", "-oProxyCommand=x"),
        ("address", "%h"),
        ("proxy_jump", "-oProxyCommand=x"),
        ("proxy_jump", "ops@-x"),
        ("user", "-l"),
        ("name", "*"),
        ("port", 0),
        ("port", 65536),
        ("host_key", "ssh-ed25519 AAAAshort"),
        ("host_key", f"@cert-authority {HOST_KEY}"),
        ("host_key", f"{HOST_KEY} comment"),
        ("private_ip", "10.77.0.256"),
        ("tunnel", ["sh", "-c", "x"]),
        ("tunnel", ["az", "network", "bastion", "ssh"]),
        ("tunnel", [*BASTION, "{port}"]),
        ("tunnel", [*BASTION, "; touch x"]),
        ("tunnel", []),
    ],
)
def test_what_ssh_would_misread_is_refused(field: str, value: Any) -> None:
    outputs = contract()
    outputs["head"][field] = value
    with pytest.raises(ContractError, match=field):
        read_outputs(outputs)


def test_both_tunnels_are_accepted_and_none_is_left_out() -> None:
    outputs = contract()
    outputs["head"]["tunnel"] = list(IAP)
    assert read_outputs(outputs).head.tunnel == tuple(IAP)
    del outputs["head"]["tunnel"]
    assert "tunnel" not in dumped(read_outputs(outputs))["head"]
