"""The check for running jobs, with the real engine and a fake `ssh`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from components.cluster.busy import VERSION
from tests.offline.cloud.stack import ROOT, TestStack
from tests.yard.conftest import outputs
from trainyard.machines import END_JOBS
from trainyard.outputs import dumped

pytestmark = pytest.mark.engine

_PROGRAM = """
import sys
sys.path.insert(0, {root!r})
from components.cluster.busy import refuse_to_end_jobs
from components.platforms.base import MACHINES

class Platform(pulumi.ComponentResource):
    def __init__(self):
        key = pulumi.Output.secret("the-private-key")
        hook = refuse_to_end_jobs(key, (pulumi.Config("trainyard").get("end_jobs") or "").split(","))
        super().__init__("trainyard:index:Any", {name!r}, {{MACHINES: {machines!r}}}, hook)

opts = pulumi.ResourceOptions(parent=Platform())
network = made("gcp:compute/network:Network", "net", opts, autoCreateSubnetworks=False, mtu={mtu})
pulumi.export("cluster", {cluster!r} if not {broken} else network.id.apply(lambda _: 1 / 0))
pulumi.export("ssh_private_key", pulumi.Output.secret("the-private-key"))
"""

_SSH = """#!/usr/bin/env python3
import json, pathlib, sys
folder = pathlib.Path(__file__).parent
with (folder / "calls").open("a") as calls:
    calls.write(json.dumps(sys.argv) + "\\n")
answer = json.loads((folder / "answer").read_text())
print(answer["out"], end="")
print(answer["err"], end="", file=sys.stderr)
sys.exit(answer["code"])
"""
_IDS = {"yard-head": "a", "yard-gpu-0": "b", "yard-gpu-1": "b"}
_JOB = "7|ada|yard-gpu-[0-1]\n"


class BusyStack:
    """A stack whose program contains the check for running jobs. The fake `ssh` prints the test's answer."""

    def __init__(self, stack: TestStack, folder: Path) -> None:
        self.stack, self._folder = stack, folder
        folder.mkdir()
        (folder / "ssh").write_text(_SSH)
        (folder / "ssh").chmod(0o755)
        stack.environment["PATH"] = f"{folder}:{stack.environment['PATH']}"
        del stack.environment["TRAINYARD_OFFLINE_COMMANDS"]
        self.answers("")
        self.put()

    def put(
        self, mtu: int = 1460, name: str = "any", scheduler: str = "slurm", broken: bool = False, **ids: str
    ) -> None:
        """Write the program. A different `mtu` updates the network. `ids` maps names of machines to new digests."""
        machines = {**_IDS, **{key.replace("_", "-"): value for key, value in ids.items()}}
        machines = {key: f"{VERSION}-{value}" for key, value in machines.items() if value}
        cluster = dumped(replace(outputs(1, "fake", 2, None), scheduler=scheduler))
        program = _PROGRAM.format(root=str(ROOT), name=name, machines=machines, mtu=mtu, cluster=cluster, broken=broken)
        self.stack.write(program, raw=True)

    def answers(self, out: str, code: int = 0, err: str = "") -> None:
        (self._folder / "answer").write_text(json.dumps({"out": out, "code": code, "err": err}))

    @property
    def calls(self) -> list[list[str]]:
        file = self._folder / "calls"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def mtu(self) -> int:
        mtu = self.stack.record("net").inputs["mtu"]
        assert isinstance(mtu, float)
        return int(mtu)


@pytest.fixture(scope="module")
def deployed(empty: TestStack, tmp_path_factory: pytest.TempPathFactory) -> TestStack:
    """A deployed stack whose program contains the check. Tests use copies of this stack."""
    made = BusyStack(TestStack(tmp_path_factory.mktemp("stack"), empty), tmp_path_factory.mktemp("ssh") / "bin")
    made.stack.up().passed()
    assert made.calls == []
    return made.stack


@pytest.fixture
def busy(deployed: TestStack, tmp_path: Path) -> BusyStack:
    return BusyStack(TestStack(tmp_path, deployed), tmp_path / "bin")


def test_up_refuses_before_anything_changes(busy: BusyStack) -> None:
    busy.answers(_JOB)
    busy.put(mtu=1500, yard_gpu_1="other")
    assert "`pulumi up` will refuse this" in busy.stack.preview().passed()
    up = busy.stack.up().failure()
    assert "this change replaces, restarts or removes yard-gpu-1, and running jobs would end" in up
    assert "job 7 of ada on yard-gpu-[0-1]" in up
    assert "Traceback" not in up
    assert busy.mtu == 1460
    assert len(busy.calls) == 2
    assert "the-private-key" not in str(busy.calls)
    # A failed check runs again on the next `up`, because the engine keeps the digests from the last successful `up`.
    busy.stack.up().failure()
    # A job that started since then is not ended.
    busy.answers(f"{_JOB}8|ada|yard-gpu-1\n")
    refused = busy.stack.up("--config", f"{END_JOBS}=7")
    assert f"`pulumi up --config {END_JOBS}=7,8`" in refused.text, refused
    assert busy.mtu == 1460
    assert busy.stack.up("--config", f"{END_JOBS}=7,8").code == 0
    assert busy.mtu == 1500


def test_idle_machines_are_changed_without_question(busy: BusyStack) -> None:
    busy.answers("7|ada|yard-gpu-0\n")
    busy.put(name="other")
    refused = busy.stack.preview()
    assert "restarts or removes yard-head, yard-gpu-0, yard-gpu-1," in refused.text, refused
    busy.put(mtu=1500, yard_gpu_1="")
    busy.stack.up().passed()
    assert busy.mtu == 1500
    assert len(busy.calls) == 2
    # The head is not asked about changes to other resources, or if it has no Slurm.
    busy.put(mtu=1600, scheduler="none", yard_gpu_1="")
    busy.stack.up().passed()
    busy.put(scheduler="none", yard_gpu_1="other")
    busy.stack.up().passed()
    assert len(busy.calls) == 2


def test_a_dead_head_is_replaced_with_a_warning(busy: BusyStack) -> None:
    busy.answers("", 255, "ssh: connect to host 127.0.0.1 port 22001: Connection refused\n")
    busy.put(mtu=1500, yard_head="other")
    up = busy.stack.up().passed()
    assert "cannot check whether this change ends running jobs on yard-head: ssh: " in up
    assert "Connection refused. `pulumi up` makes the change without this check" in up


def test_destroy_does_not_connect_to_the_head(busy: BusyStack) -> None:
    busy.answers(_JOB)
    busy.stack.destroy().passed()
    assert busy.calls == []
    busy.put()
    busy.stack.up().passed()
    assert busy.calls == []


def test_a_failed_up_does_not_end_the_protection(busy: BusyStack) -> None:
    busy.put(yard_gpu_2="new", broken=True)
    busy.stack.up().failure()
    assert busy.calls == []
    busy.answers(_JOB)
    busy.put(yard_gpu_1="other", yard_gpu_2="new")
    refused = busy.stack.up()
    assert "job 7 of ada" in refused.text, refused
