"""Checks of the `driver` key in node groups."""

from __future__ import annotations

from collections.abc import Iterator

from components.catalog import conflicts, driver_locks
from components.catalog.drivers import incompatible
from components.plan.checks.base import Broken, Level, Planned, check


@check(
    "driver-available",
    Level.ERROR,
    "write `driver: install`, or use an image with a driver",
    "remove it, so that the nodes use the driver in the image",
    "use driver: image and install a driver yourself, or one of the operating systems {systems}",
    "use driver: image with an image or host that has a different driver, or use a different machine type",
    "correct the versions in components/catalog/drivers.yaml",
)
def driver_available(planned: Planned) -> Iterator[Broken]:
    """Each group with NVIDIA GPUs has a driver, either the driver in the image or a driver with locked versions."""
    plan = planned.plan
    image, lock = plan.image, driver_locks().get(plan.image.os)
    systems = {"systems": ", ".join(driver_locks())}
    for name in plan.groups:
        host = plan.group(name)[0]
        path = f"cluster.nodes.{name}.driver"
        needs_driver = host.machine.has_nvidia_gpus and not plan.uses_existing_hosts
        if host.driver == "image" and needs_driver and "driver" not in image.versions:
            yield Broken(path=path, rule=f"the image {image.name} has no NVIDIA driver")
        if host.driver != "install":
            continue
        if "driver" in image.versions:
            rule = f"the image {image.name} already has NVIDIA driver {image.versions['driver']}"
            yield Broken(path=path, rule=rule, fix=1)
        elif lock is None:
            rule = f"no driver versions are locked for {image.os}"
            yield Broken(path=path, rule=rule, words=systems, fix=2)
        else:
            if reason := lock.refused_gpus.get(host.machine.gpu_type or ""):
                yield Broken(path=path, rule=f"driver {lock.driver} on {host.machine.gpu_type} GPUs: {reason}", fix=3)
            for rule in incompatible(lock.versions, conflicts()):
                yield Broken(path=path, rule=f"the lock for {lock.name} has {rule}", fix=4)


@check("driver-without-gpus", Level.WARNING, "remove it, or silence the check to test the installation")
def driver_needs_gpus(planned: Planned) -> Iterator[Broken]:
    """Only groups with NVIDIA GPUs install a driver. On other machines, the bring-up fails after the installation."""
    for name in planned.plan.groups:
        host = planned.plan.group(name)[0]
        if host.driver == "install" and not host.machine.has_nvidia_gpus:
            yield Broken(
                path=f"cluster.nodes.{name}.driver",
                rule=f"{host.machine.name} has no NVIDIA GPU, so the bring-up fails after the installation",
            )
