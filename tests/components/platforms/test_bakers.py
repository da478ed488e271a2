"""Images on every platform: each platform builds images or gives a reason why it does not."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pulumi
import pytest
import yaml

from components.platforms import PLATFORMS
from components.platforms.baker import BakeArgs
from components.platforms.gcp.bake import GcpBaker
from components.platforms.registry import Baking, platform_baker, platform_facts
from offline.cloud.faults import FILE
from offline.cloud.world import World
from tests.components.platforms.recording import CONTRACTS, Recorder, planned
from tests.offline.cloud.stack import require_pulumi
from trainyard.errors import StackError
from yard.stack.bake import bake_in_cloud, request_of
from yard.stack.workspace import Workspace

CLOUDS = {
    "azure": ("azure-a100", "VirtualMachine", ["Gallery", "GalleryImage", "GalleryImageVersion", "ResourceGroup"]),
    "gcp": ("gcp-a2", "Instance", ["Image"]),
}
"""Provider -> a stack, the type of its machines, and the types of the resources of an image."""
NAME = "trainyard-ubuntu-24-04-0123456789abcdef"
_AZURE = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/galleries/own/images/{}/versions/1.0.0"
IMAGES = {"azure": _AZURE.format, "gcp": "projects/p/global/images/{}".format}
"""Provider -> values of `custom_image` and `baked_image` by the image's name."""


@pytest.mark.parametrize("provider", PLATFORMS)
def test_platform_builds_images_or_states_the_reason(provider: str) -> None:
    baking = platform_facts(provider).baking
    if not isinstance(baking, Baking):
        assert "Fix: " in baking
        with pytest.raises(StackError, match="stack lambda-a6000: the platform uses existing hosts"):
            request_of("lambda-a6000")
        return
    # A new image does not replace or restart running machines.
    assert "baked_image" in planned(CONTRACTS[provider].stack, {}).plan.platform.beside_machines
    assert bool(baking.here) != (provider in CLOUDS)
    assert baking.here or platform_baker(provider)


@pytest.mark.parametrize("provider", CLOUDS)
def test_new_machines_of_clouds_boot_the_baked_image(provider: str) -> None:
    image_of = import_module(f"components.platforms.{provider}.nodes").image_of
    own, baked, stack = IMAGES[provider]("own"), IMAGES[provider](NAME), CLOUDS[provider][0]
    edits = {"platform__custom_image": own}
    assert image_of(planned(stack, edits).plan) == own
    assert image_of(planned(stack, edits | {"platform__baked_image": baked}).plan) == baked


@pytest.mark.usefixtures("loops")
def test_googles_builder_has_an_account_for_the_registry() -> None:
    """Stage 45-transport pulls NCCL's plugin with a token of the machine's service account."""
    answers = {"variableValue": "done", "currentStatus": "TERMINATED", "bootDisks": [{"source": "disk"}]}
    recorder = Recorder(CONTRACTS["gcp"].answer, lambda args: answers)
    pulumi.runtime.set_mocks(recorder, preview=False)
    args = BakeArgs(plan=planned("gcp-a3-mega", {}).plan, name=NAME, builds=True, admin_key="")
    pulumi.runtime.test(lambda: GcpBaker(args).image)()  # type: ignore[no-untyped-call]
    made = {kind.rpartition(":")[2]: inputs for kind, _, inputs in recorder.made}
    account = made["Account"]["accountId"]
    assert account == "bake-0123456789a-nodes"
    assert made["Instance"]["serviceAccount"]["email"] == f"{account}@mail"
    assert made["Image"]["sourceDisk"] == "disk"


@pytest.fixture(params=CLOUDS)
def cloud(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Workspace, World]:
    """The provider, the stack of an image that does not exist, and the simulated cloud."""
    require_pulumi()
    source = CLOUDS[request.param][0]
    name = request_of(source).name
    workspace = Workspace(name, simulated=True, home=tmp_path, source=source)
    return request.param, workspace, World(name, tmp_path / "clouds")


@pytest.mark.engine
@pytest.mark.full
def test_an_image_is_built_once_and_its_builder_deleted(cloud: tuple[str, Workspace, World]) -> None:
    provider, stack, world = cloud
    image = bake_in_cloud(stack)
    assert stack.name in image
    kinds = sorted(record.token.rpartition(":")[2] for record in world.records())
    assert kinds == CLOUDS[provider][2]
    # The second call starts no operation.
    stack.run = lambda words, environment, folder: pytest.fail(f"pulumi {words}")
    assert bake_in_cloud(stack) == image


@pytest.mark.engine
@pytest.mark.full
def test_a_failed_bake_leaves_no_resource_and_no_stack(cloud: tuple[str, Workspace, World]) -> None:
    provider, stack, world = cloud
    world.folder.mkdir(parents=True, exist_ok=True)
    fault = {"fault": "stockout", "of": f"*:{CLOUDS[provider][1]}", "name": "*-builder"}
    (world.folder / FILE).write_text(yaml.safe_dump([fault]))
    with pytest.raises(StackError, match="No image was stored"):
        bake_in_cloud(stack)
    assert list(world.records()) == []
    assert not stack.exists()
