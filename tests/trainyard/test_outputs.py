"""Reasons and states of nodes in Slurm, and the outputs contract with accepted and rejected values."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest

from tests.trainyard.tunnel_programs import BASTION, IAP
from tests.yard.conftest import HOST_KEY, outputs
from trainyard.errors import ContractError
from trainyard.faults import fault, is_epidemic, is_free, is_in_service, reason_for
from trainyard.outputs import dumped, read_outputs, ssh_command


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("TY:disk-full: / is full", "disk-full"),
        ("TY:gone: no answer for 15 s", "gone"),
        ("Not responding", "gone"),
        ("node unexpectedly rebooted", "gone"),
        (reason_for("bandwidth", "alone: 3 GB/s"), "bandwidth"),
        ("TY:event: the cloud announces Preempt", None),
        (reason_for("quarantine", "3 faults in a week"), None),
        ("TY:roll", None),
        ("bad cable", None),
        ("", None),
    ],
)
def test_reasons_have_a_kind_of_fault(reason: str, kind: str | None) -> None:
    assert fault(reason) == kind


@pytest.mark.parametrize(
    ("state", "in_service", "free"),
    [
        ("idle", True, False),
        ("allocated", True, False),
        ("mixed-", True, False),
        ("reserved", True, False),
        ("MIXED+COMPLETING", True, False),
        ("idle*", False, True),
        ("IDLE+NOT_RESPONDING", False, True),
        ("draining", False, False),
        ("draining*", False, False),
        ("drained", False, True),
        ("down*", False, True),
        ("maint", False, True),
        ("unknown", False, True),
    ],
)
def test_states_of_sinfo_and_scontrol(state: str, in_service: bool, free: bool) -> None:
    assert is_in_service(state) is in_service
    assert is_free(state) is free


@pytest.mark.parametrize(("faulty", "nodes", "expected"), [(1, 3, False), (2, 3, True), (2, 10, False), (3, 10, True)])
def test_many_faulty_nodes_have_a_common_cause(faulty: int, nodes: int, expected: bool) -> None:
    assert is_epidemic(faulty, nodes) is expected


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
    cluster = outputs(8, "h100", 1, None)
    head = replace(cluster.head, proxy_jump="ops@bastion.example.org:2222", tunnel=tuple(BASTION))
    return dumped(replace(cluster, head=head))


def test_valid_outputs_are_read_without_a_change() -> None:
    found = read_outputs(contract())
    assert dumped(found) == contract()
    assert list(found.addresses.items()) == [("yard-head", "10.77.0.4"), ("yard-gpu-0", "10.77.2.1")]


@pytest.mark.parametrize("place", ["head", "node"])
@pytest.mark.parametrize("suffix", [OPTION, "\n", "\r", " -oProxyCommand=x", '"', "\0", "$(x)", "`x`"])
def test_no_field_can_add_a_line_or_an_option(place: str, suffix: str) -> None:
    def part(contract: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = contract["head"] if place == "head" else contract["nodes"][0]
        return found

    # Every string field of the host, except hardware names, which are not used in SSH files.
    for field in sorted(part(contract()).keys() - {"gpus", "gpu_type", "fabric", "port"}):
        changed = contract()
        target = part(changed)
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
        ("private_ip", "10.77.0.256"),
        ("tunnel", ["sh", "-c", "x"]),
        ("tunnel", ["az", "network", "bastion", "ssh"]),
        ("tunnel", [*BASTION, "{port}"]),
        ("tunnel", [*BASTION, "; touch x"]),
        ("tunnel", []),
    ],
)
def test_values_that_are_unsafe_for_ssh_are_refused(field: str, value: Any) -> None:
    changed = contract()
    changed["head"][field] = value
    with pytest.raises(ContractError, match=field):
        read_outputs(changed)


@pytest.mark.parametrize("name", ["ann\n  ProxyCommand x", "-l", "Ann", ""])
def test_names_of_users_that_are_unsafe_for_ssh_are_refused(name: str) -> None:
    with pytest.raises(ContractError, match="users must match"):
        read_outputs(contract() | {"users": {name: "user"}})


def test_empty_fields_are_left_out() -> None:
    found = read_outputs(contract())
    full = replace(found, head=replace(found.head, tunnel=tuple(IAP)), spares={"gpu": 1}, unready="the gate has failed")
    assert read_outputs(dumped(full)) == full
    assert not dumped(found).keys() & {"spares", "unready"}
    assert "tunnel" not in dumped(replace(found, head=replace(found.head, tunnel=None)))["head"]


def test_values_are_read_as_the_engine_changes_them() -> None:
    changed = contract()
    changed["head"]["port"] = 22200.0
    # The engine also omits null values.
    changed["nodes"][0]["gpus"] = 8.0
    del changed["nodes"][0]["gpu_type"], changed["usd_per_hour"]
    found = read_outputs(changed)
    assert (found.head.port, type(found.head.port), found.nodes[0].gpus) == (22200, int, 8)
    assert (found.nodes[0].gpu_type, found.usd_per_hour) == (None, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extra": 1}, "extra is not a field of the contract"),
        ({"nodes": {}}, "nodes must be a list"),
        ({"env": {"gpu": {"A": 1}}}, "env.gpu.A must be a string"),
        ({"usd_per_hour": "1"}, "usd_per_hour must be a number"),
        ({"head": None}, "head must be an object"),
        ({"nodes": [{"name": "a"}]}, "nodes.0 missing 5 required"),
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
