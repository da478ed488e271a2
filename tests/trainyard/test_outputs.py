"""The outputs contract: accepted and rejected values, and the ssh command."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest

from tests.trainyard.tunnel_programs import BASTION, IAP
from trainyard.errors import ContractError
from trainyard.outputs import Cluster, Head, Node, dumped, read_head, read_outputs, ssh_command

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
def test_the_ssh_command_has_valid_arguments(change: dict[str, object], words: list[str]) -> None:
    assert shlex.split(ssh_command(HEAD | change, "prod")) == words


def contract() -> dict[str, Any]:
    """Return outputs in which every field used in the SSH configuration has a value."""
    head = Head(
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
    node = Node(
        name="yard-gpu-0",
        private_ip="10.77.2.1",
        group="gpu",
        gpus=8,
        gpu_type="h100",
        fabric="ethernet",
        host_key=HOST_KEY,
        address="203.0.113.8",
    )
    outputs = Cluster(
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


def test_valid_outputs_are_read_without_a_change() -> None:
    assert dumped(read_outputs(contract())) == contract()


@pytest.mark.parametrize("place", ["head", "node"])
@pytest.mark.parametrize("suffix", [OPTION, "\n", "\r", " -oProxyCommand=x", '"', "\0", "$(x)", "`x`"])
def test_no_field_can_add_a_line_or_an_option(place: str, suffix: str) -> None:
    sound = contract()
    part = sound["head"] if place == "head" else sound["nodes"][0]
    # Every string field of the host, except hardware names, which are not used in SSH files.
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
def test_values_that_are_unsafe_for_ssh_are_refused(field: str, value: Any) -> None:
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


def test_addresses_begin_with_the_head() -> None:
    assert list(read_outputs(contract()).addresses.items()) == [("yard-head", "10.77.0.4"), ("yard-gpu-0", "10.77.2.1")]


def test_integers_that_the_engine_wrote_as_floats_are_read() -> None:
    head = read_head({**contract()["head"], "port": 22200.0})
    assert (head.port, type(head.port)) == (22200, int)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extra": 1}, "extra is not a field of the contract"),
        ({"nodes": {}}, "nodes must be a list"),
        ({"env": {"gpu": {"A": 1}}}, "env.gpu.A must be a string"),
        ({"usd_per_hour": "1"}, "usd_per_hour must be a number"),
        ({"head": None}, "head must be an object"),
        ({"nodes": [{"name": "a"}]}, "nodes.0 missing 6 required"),
        ({"contract": 2}, "contract 2"),
        ({"contract": None}, "wait until `pulumi up`"),
    ],
)
def test_damaged_outputs_are_refused_with_the_path(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError, match=message):
        read_outputs(contract() | change)


def test_outputs_that_yard_would_refuse_are_not_written() -> None:
    with pytest.raises(ContractError, match="name must match"):
        dumped(replace(read_outputs(contract()), name="Not a name"))


def test_the_reason_of_an_unready_cluster_is_read_back() -> None:
    unready = replace(read_outputs(contract()), unready="the gate has not passed")
    assert read_outputs(dumped(unready)) == unready
    assert "unready" not in dumped(read_outputs(contract()))


def test_spares_are_left_out_if_there_are_none() -> None:
    outputs = contract()
    assert "spares" not in dumped(read_outputs(outputs))
    outputs["spares"] = {"gpu": 1}
    assert dumped(read_outputs(outputs))["spares"] == {"gpu": 1}
