"""Each cloud's platform with the real engine and a simulated cloud that validates inputs."""

from __future__ import annotations

import base64
import gzip
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.components.platforms.living import PlatformStack
from tests.components.platforms.recording import Edits
from tests.offline.cloud.stack import require_pulumi

pytestmark = pytest.mark.engine


@pytest.fixture
def cloud(tmp_path: Path) -> PlatformStack:
    require_pulumi()
    return PlatformStack(tmp_path)


FILESTORE = {"storage__shared": {"kind": "filestore", "size_gib": 2560}}


@pytest.mark.parametrize(
    ("stack", "edits", "counts", "kept"),
    [
        # Azure would refuse to update run commands, so each of them is replaced with its machine.
        ("azure-a100", {}, (3, 6), "Disk"),
        pytest.param("gcp-a3-mega", FILESTORE, (1, 3), "Instance", marks=pytest.mark.full),
    ],
)
def test_a_stack_is_created_changed_and_destroyed(
    cloud: PlatformStack, stack: str, edits: Edits, counts: tuple[int, int], kept: str
) -> None:
    for_a_node, replaced = counts
    cloud.put(stack, **edits)
    cloud.deploy()
    assert len(cloud.outputs()["keys"]) == 3
    # Adding a node does not change the other nodes.
    cloud.put(stack, nodes__gpu__count=3, limits={}, **edits)
    planned = cloud.preview().passed()
    assert re.findall(r"(\S+ to (?:create|replace|update))", planned) == [f"{for_a_node} to create"], planned
    # A changed identity replaces the machines and has no other effect.
    cloud.put(stack, identity="two", **edits)
    planned = cloud.preview().passed()
    assert f"+-{replaced} to replace" in planned, planned
    assert "to update" not in planned
    cloud.deploy()
    assert "is protected" in cloud.destroy().failure()
    assert cloud.kinds.count(kept) == 1, "only the shared storage is left"
    cloud.put(stack, platform__protect_storage=False, **edits)
    cloud.deploy()
    cloud.destroy().passed()
    assert cloud.kinds == []


UPDATED = {"azure-native:network:Subnet"}
"""Types of resources that are updated: the subnet for NetApp Files no longer sets the default for outbound access."""
STATES = sorted((Path(__file__).parent / "former_states").glob("*.json.gz"))
"""States that commit 4a35eb0 wrote with the real engine (`pulumi stack export`) on simulated clouds. In that version,
machines, disks and placements were children of the platform."""


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.name.removesuffix(".json.gz"))
def test_an_older_stack_keeps_its_resources(state: Path, cloud: PlatformStack, tmp_path: Path) -> None:
    cloud.put(state.name.removesuffix(".json.gz"), limits={})
    (tmp_path / "state.json").write_bytes(gzip.decompress(state.read_bytes()))
    cloud("stack", "import", "-s", "test", "--file", str(tmp_path / "state.json")).passed()
    planned = cloud.preview("--diff").passed()
    assert not re.search(r"to (replace|delete)", planned), planned
    assert set(re.findall(r"^\s*~ (\S+?): \(update\)", planned, re.M)) <= UPDATED, planned
    # Only the new components are created.
    created = re.findall(r"^\s*\+ (\S+?): \(create\)", planned, re.M)
    assert created
    assert {kind for kind in created if not kind.startswith("trainyard:")} == set(), planned


CLOUDS: dict[str, tuple[str, tuple[str, str], Callable[[Any], str], Callable[[Any], str], Edits, Edits]] = {
    "azure": (
        "azure-a100",
        ("opt-gpu-0", "opt-gpu-1"),
        lambda inputs: base64.b64decode(inputs["osProfile"]["customData"]).decode(),
        lambda inputs: str(inputs["storageProfile"]["imageReference"]["version"]),
        {"platform__boot_disk_gib": 512},
        {"platform__image_version": "24.04.2026080101"},
    ),
    "gcp": (
        "gcp-a3-mega",
        ("mega-gpu-0", "mega-gpu-1"),
        lambda inputs: str(inputs["metadata"]["user-data"]),
        lambda inputs: str(inputs["bootDisk"]["initializeParams"]["image"]),
        {"platform__boot_disk_type": "pd-balanced"},
        {"platform__custom_image": "projects/p/global/images/own"},
    ),
}
"""Provider -> a stack, its workers, how to find user-data and image, and edits that replace workers or their image."""


@pytest.mark.parametrize("name", ["azure", pytest.param("gcp", marks=pytest.mark.full)])
def test_user_data_and_image_reach_only_new_machines(cloud: PlatformStack, name: str) -> None:
    stack, workers, user_data, image, replacing, changing_image = CLOUDS[name]

    def up(word: str, *arguments: str, **edits: Any) -> str:
        cloud.put(stack, word, **{"limits": {}, "platform__protect_storage": False, **edits})
        return cloud.deploy(*arguments)

    def has() -> tuple[list[str], list[str]]:
        """Return the first word of each worker's user-data, and its image."""
        inputs = [cloud.record(worker).inputs for worker in workers]
        return [user_data(one).split()[0] for one in inputs], [image(one) for one in inputs]

    up("first")
    (_, [old, _]) = has()
    assert "to replace" not in up("second", **changing_image)
    assert has() == (["first", "first"], [old, old])
    # A refresh reads the image from the cloud.
    up("second", "--refresh", **changing_image)
    assert has() == (["first", "first"], [old, old])

    # A replaced machine gets the new values, and the others are not replaced.
    up("second", "--replace", cloud.record(workers[1]).urn, **changing_image)
    (_, [_, new]) = has()
    assert new != old
    assert has() == (["first", "second"], [old, new])
    assert "replaced" not in up("second", **changing_image)

    # A machine that is replaced for another reason also gets the new values.
    up("third", **changing_image, **replacing)
    assert has() == (["third", "third"], [new, new])

    # A changed identity replaces the machines.
    up("fourth", identity="two", **changing_image, **replacing)
    assert has() == (["fourth", "fourth"], [new, new])


SPOT: Edits = {"nodes__gpu__capacity": {"kind": "spot"}, "limits": {}}
FILES: Edits = {
    "storage__shared": {"kind": "azure_files", "size_gib": 1024},
    "nodes__gpu": {"machine": "Standard_NC96ads_A100_v4", "count": 1, "placement": "compact"},
}


@pytest.mark.parametrize(
    ("stack", "edits", "kinds"),
    [
        ("azure-h100", {}, {"BastionHost", "CapacityPoolVolume", "AvailabilitySet"}),
        pytest.param("azure-h100", SPOT | {"platform__zone": "1"}, {"VirtualMachineScaleSet"}, marks=pytest.mark.full),
        pytest.param(
            "azure-a100", FILES, {"StorageAccount", "FileShare", "ProximityPlacementGroup"}, marks=pytest.mark.full
        ),
    ],
)
def test_a_preview_after_up_shows_no_changes(cloud: PlatformStack, stack: str, edits: Edits, kinds: set[str]) -> None:
    cloud.put(stack, **edits)
    cloud.deploy()
    assert kinds <= set(cloud.kinds)
    cloud.preview("--expect-no-changes").passed()


@pytest.mark.full
@pytest.mark.parametrize(
    "nodes",
    [
        {"machine": "Standard_NC96ads_A100_v4", "count": 1, "placement": "compact"},
        {"machine": "Standard_ND96amsr_A100_v4", "count": 2, "placement": "same_fabric"},
    ],
    ids=lambda nodes: nodes["placement"],
)
def test_an_azure_stack_moves_to_another_zone(cloud: PlatformStack, nodes: dict[str, Any]) -> None:
    edits: Edits = {"nodes__gpu": nodes, "platform__protect_storage": False}

    def ids() -> dict[str, str]:
        return {record.token.rpartition(":")[2]: record.id for record in cloud.world.records()}

    cloud.put("azure-a100", **edits, platform__zone="1")
    cloud.deploy()
    before = ids()
    cloud.put("azure-a100", **edits, platform__zone="2")
    cloud.deploy()
    zones = [record.inputs["zones"] for record in cloud.world.records() if "zones" in record.inputs]
    assert zones
    assert all(zone == ["2"] for zone in zones)
    assert {kind for kind in before if before[kind] != ids()[kind]} == {"Disk"}
    cloud.preview("--expect-no-changes").passed()


def os_disk(cloud: PlatformStack, machine: str) -> dict[str, Any]:
    profile: Any = cloud.record(machine).inputs["storageProfile"]
    found: dict[str, Any] = profile["osDisk"]
    return found


@pytest.mark.full
def test_an_evicted_azure_node_is_kept_replaced_or_removed(cloud: PlatformStack) -> None:
    cloud.put("azure-a100", **SPOT)
    cloud.deploy()
    stopped = [{"fault": "evicted", "name": "opt-gpu-0"}, {"fault": "evicted", "name": "opt-gpu-1"}]
    cloud.faults(*stopped, {"fault": "deallocated", "name": "opt-head"})
    cloud.refresh().passed()
    assert "diskSizeGB" not in os_disk(cloud, "opt-gpu-0")
    cloud.preview("--expect-no-changes").passed()
    cloud.deploy()
    # The host keys of stopped machines are empty, but `up` still succeeds.
    assert cloud.outputs()["keys"] == ["", "", ""]
    # A stopped machine can be removed.
    cloud.put("azure-a100", **SPOT, nodes__gpu__count=1)
    cloud.deploy()
    assert cloud.kinds.count("VirtualMachineRunCommandByVirtualMachine") == 2
    # A stopped machine can be replaced, and the new machine has a new disk.
    cloud.put("azure-a100", **SPOT, nodes__gpu__count=1, identity="two")
    cloud.deploy()
    assert os_disk(cloud, "opt-gpu-0")["diskSizeGB"] == 256
    assert all(cloud.outputs()["keys"])


@pytest.mark.full
def test_a_head_that_was_stopped_and_started_is_unchanged(cloud: PlatformStack) -> None:
    cloud.put("azure-a100")
    cloud.deploy()
    running = cloud.record("opt-head")
    cloud.faults({"fault": "deallocated", "name": "opt-head"})
    cloud.refresh().passed()
    # After the start, Azure returns the disk properties again, and the plugin adds them to the inputs.
    for properties in (running.inputs, running.outputs):
        profile: Any = properties["storageProfile"]
        for disk in (profile["osDisk"], *profile["dataDisks"]):
            disk["diskSizeGB"] = 256
            disk["managedDisk"]["storageAccountType"] = "Premium_LRS"
    cloud.world.put(running)
    cloud.refresh().passed()
    cloud.preview("--expect-no-changes").passed()


@pytest.mark.full
@pytest.mark.parametrize(("stack", "name"), [("azure-a100", "opt-head"), ("gcp-a3-mega", "mega-head")])
def test_a_detached_disk_is_attached_again(cloud: PlatformStack, stack: str, name: str) -> None:
    cloud.put(stack)
    cloud.deploy()
    before = cloud.record(name).inputs
    cloud.faults({"fault": "detached", "name": name})
    cloud.refresh().passed()
    assert cloud.record(name).inputs != before
    assert "replaced" not in cloud.deploy()
    assert cloud.record(name).inputs == before
    cloud.preview("--expect-no-changes").passed()


def test_azure_disks_grow_and_a_smaller_shared_disk_is_refused(cloud: PlatformStack) -> None:
    cloud.put("azure-a100")
    cloud.deploy()
    before = list(cloud.world.records())
    cloud.put("azure-a100", word="second", storage__shared__size_gib=512)
    assert "cluster.storage.shared.size_gib: the disk has 1024 GiB" in cloud.up().failure()
    assert list(cloud.world.records()) == before
    # A larger boot disk replaces the machines, and the shared disk is resized.
    cloud.put("azure-a100", storage__shared__size_gib=2048, platform__boot_disk_gib=512)
    cloud.deploy()
    assert cloud.record("opt-shared").inputs["diskSizeGB"] == 2048
    assert [os_disk(cloud, name)["diskSizeGB"] for name in ("opt-head", "opt-gpu-0")] == [512, 512]
