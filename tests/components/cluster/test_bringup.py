"""The bring-up with the real engine, the outputs if it fails, and the warning after a failed creation."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import asdict
from pathlib import Path

import pytest

from components.cluster import bringup
from components.cluster.cluster import NO_MACHINES
from components.cluster.leftovers import Leftover, leftovers_message
from offline.cloud.faults import Fault
from offline.command import ssh
from tests.components.platforms.living import WholeStack, whole_stack
from tests.offline.cloud.stack import wait_until
from trainyard.outputs import read_outputs

COMMANDS = {
    "opt-bringup-bundle": bringup.NO_BUNDLE,
    "opt-bringup-format-permission": bringup.NO_FORMAT_PERMISSION,
    "opt-bringup-handover": bringup.NO_HANDOVER,
    "opt-bringup-gate": bringup.NO_GATE,
}
"""The commands of the bring-up, and the reason in the outputs after a failed command."""
ENDS = {"opt-bringup-bundle", "opt-bringup-gate"}
HOST_KEYS = {"opt-bringup-head-host-keys", "opt-bringup-host-keys"}
NO_KEY = """
import components.cluster.bringup as bringup, pulumi
from dataclasses import replace
real = bringup._host_keys
def without(host): return replace(host, host_key=pulumi.Output.from_input("")) if host.plan.name == "{name}" else host
bringup._host_keys = lambda name, hosts, *rest: real(name, [without(host) for host in hosts], *rest)
"""
NO_TUNNEL = """
import components.cluster.bringup, pulumi
def fail(*_): raise pulumi.RunError("the tunnel does not open")
components.cluster.bringup.open_tunnel = lambda command, port: pulumi.Output.from_input(command).apply(fail)
"""


@pytest.fixture
def stack(tmp_path: Path) -> WholeStack:
    return whole_stack(tmp_path)


def outputs_of(stack: WholeStack) -> tuple[str | None, list[str]]:
    """Return why the cluster is not ready, and its nodes."""
    outputs = stack.outputs()
    assert {"admin_private_key", "user_private_key"} <= outputs.keys()
    cluster = read_outputs(outputs["cluster"])
    return cluster.unready, [node.name for node in cluster.nodes]


def test_retries_refused_connections_for_15_minutes() -> None:
    # Refused connections take no time, so the duration is the sum of the pauses. The offline plugin uses the same
    # pauses as pulumi-command: 100 ms, multiplied by 1.5 after each attempt, at most 5 s
    # (pulumi/pulumi@242a78a:sdk/go/common/util/retry/until.go, read 2026-11-22).
    assert (ssh._FIRST_DELAY, ssh._DELAY_GROWTH, ssh._LONGEST_DELAY) == (0.1, 1.5, 5.0)
    pauses = [min(ssh._FIRST_DELAY * ssh._DELAY_GROWTH**n, ssh._LONGEST_DELAY) for n in range(bringup._DIAL_ATTEMPTS)]
    assert 900 <= sum(pauses) < 990


# The first and the last command are tested in `make test`, and all commands in `make test-full`.
@pytest.mark.engine
@pytest.mark.parametrize(
    "name", [name if name in ENDS else pytest.param(name, marks=pytest.mark.full) for name in COMMANDS]
)
def test_outputs_exist_after_a_failed_command(stack: WholeStack, name: str) -> None:
    stack.put("azure-a100")
    # The bundle fails while the workers are being created. As on a real head, the command takes time before it fails.
    slow_workers = {"fault": "slow", "name": "opt-gpu-*", "seconds": 7}
    stack.faults(
        {"fault": "slow", "at": "command", "name": name, "seconds": 2}, {"fault": "failed", "name": name}, slow_workers
    )
    assert "the fault `failed`" in stack.up().failure()
    assert outputs_of(stack) == (COMMANDS[name], ["opt-gpu-0", "opt-gpu-1"])


@pytest.mark.engine
def test_each_step_is_tested_and_a_ready_cluster_stays_ready(stack: WholeStack) -> None:
    stack.put("azure-a100")
    stack.up().passed()
    assert outputs_of(stack)[0] is None
    state = json.loads(stack("stack", "export", "-s", "test").text)["deployment"]["resources"]
    steps = [one["urn"] for one in state if one.get("parent", "").endswith("BringUp::opt-bringup")]
    assert {urn.rpartition("::")[2] for urn in steps} == COMMANDS.keys() | HOST_KEYS, "test the new step"
    stack.put("azure-a100", nodes__gpu__count=3, limits={})
    stack.faults({"fault": "stockout", "of": "*:VirtualMachine", "name": "opt-gpu-2"})
    stack.up().failure()
    assert outputs_of(stack) == (None, ["opt-gpu-0", "opt-gpu-1"])
    stack.faults({"fault": "failed", "name": "*-gate"})
    stack.up().failure()
    assert outputs_of(stack) == (None, ["opt-gpu-0", "opt-gpu-1", "opt-gpu-2"])


@pytest.mark.engine
def test_outputs_exist_after_an_interrupted_gate(stack: WholeStack) -> None:
    stack.put("gcp-a2")
    stack.faults({"fault": "slow", "at": "command", "name": "*-gate", "seconds": 600})
    process = stack.start("up", "-s", "test", "--yes", "--skip-preview")
    wait_until(lambda: stack.met_a_fault)
    os.kill(process.pid, signal.SIGINT)
    text, _ = process.communicate(timeout=60)
    assert process.returncode != 0, text
    assert outputs_of(stack) == (bringup.NO_GATE, ["neox-gpu-0", "neox-gpu-1"])


@pytest.mark.engine
def test_an_interrupted_command_does_not_wait_for_machines(stack: WholeStack) -> None:
    stack.put("azure-a100")
    command = Fault(fault="slow", at="command", name="*-bundle", seconds=600)
    stack.faults(asdict(command), {"fault": "slow", "name": "opt-gpu-*", "seconds": 600})
    process = stack.start("up", "-s", "test", "--yes", "--skip-preview")
    wait_until(lambda: stack.world.counted(command.key) > 0)
    os.kill(process.pid, signal.SIGINT)
    text, _ = process.communicate(timeout=60)
    assert process.returncode != 0, text


@pytest.mark.engine
def test_outputs_contain_the_head_without_a_workers_key(stack: WholeStack) -> None:
    stack.put("gcp-a2", first=NO_KEY.format(name="neox-gpu-1"))
    assert "no SSH host key is known for neox-gpu-1. Fix: " in stack.up().failure()
    assert outputs_of(stack) == (NO_MACHINES, [])
    # SSH cannot verify a head without a known key, so the outputs of the earlier run remain.
    stack.put("gcp-a2", first=NO_KEY.format(name="neox-head"))
    assert "no SSH host key is known for neox-head. Fix: " in stack.up().text
    assert outputs_of(stack) == (NO_MACHINES, [])


@pytest.mark.engine
def test_outputs_exist_if_the_tunnel_does_not_open(stack: WholeStack) -> None:
    stack.put("azure-h100", first=NO_TUNNEL)
    assert "the tunnel does not open" in stack.up().failure()
    unready, nodes = outputs_of(stack)
    assert (unready, len(nodes)) == (bringup.NO_TUNNEL, 2)


def leftover(name: str, usd: float | None, *, exists: bool = True, protected: bool = False) -> Leftover:
    return Leftover(name=name, kind="machine m", usd_per_hour=usd, protected=protected, exists=exists)


def test_lists_existing_resources_and_prices() -> None:
    text = leftovers_message(
        "c-gpu-1", "s", [leftover("c-head", 0.5), leftover("c-gpu-0", 10), leftover("c-gpu-1", 10)]
    )
    assert "c-gpu-1 could not be created" in text
    assert "  c-head: machine m, 0.50 dollars an hour\n  c-gpu-0: machine m, 10.00 dollars an hour\n" in text
    assert "  in total 10.50 dollars an hour at list prices\n" in text
    assert "  c-gpu-1:" not in text


def test_the_total_omits_unknown_prices_and_unfinished_ones() -> None:
    unknown, unfinished = leftover("c-shared", None), leftover("c-gpu-0", 10, exists=False)
    text = leftovers_message("x", "s", [leftover("c-head", 0.5), unknown, unfinished])
    assert "c-shared: machine m, price unknown" in text
    assert "in total 0.50 dollars an hour at list prices, plus the unknown price of c-shared" in text
    assert text.index("c-head") < text.index("Unfinished resources") < text.index("c-gpu-0")


@pytest.mark.parametrize(
    ("protected", "command"),
    [(False, "run `pulumi destroy -s s`."), (True, "run `pulumi destroy -s s --exclude-protected`.")],
)
def test_removal_command_depends_on_protection(protected: bool, command: str) -> None:
    text = leftovers_message("x", "s", [leftover("c-shared", None, protected=protected)])
    assert command in text
    assert ("platform.protect_storage to false" in text) == protected


def test_nothing_is_billed_if_the_first_creation_fails() -> None:
    assert leftovers_message("x", "s", [leftover("x", 1)]).endswith("nothing is billed.")
