"""Renders the script that turns a builder machine into an image, and computes the image's name.

The image contains the result of the stages that run once, and the software for the driver, containers and NCCL's
transport. Because all of a cluster's machines use the image, the script runs the stages for each kind of node.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace

from components.node.files import BIRTH, MIRRORS, NodeFile, driver_lock, files_for, mime_message, render_install
from components.node.parameters import ON_HEAD, birth_env, kind_env, kind_of, storage_env
from components.plan.plan import ClusterPlan, HostPlan
from trainyard.project import installed

_PREFIX = "trainyard-"
_PROGRAM = installed("cloud-init/bake")
_BEGIN = f"systemd-run --quiet --no-block --unit=trainyard-bake {BIRTH}/bake"
"""Starts the stages in the background, so that the boot can complete."""
_RUNS_ONCE = re.compile(r"^# runs: once$", re.MULTILINE)
_INSTALLS_ONCE = frozenset({"44-containers", "45-transport", "48-pyxis"})
"""Stages that run at every boot of a node, and also run on a builder to install software."""
_LIBRARY = frozenset({"stage.sh", "packages.sh", "driver.sh"})
"""Files that the builder's stages source. MIRRORS is missing, because it does not affect the finished image."""
_ON_BUILDER = frozenset(
    {"place", "sbin/trainyard-status", "units/trainyard-updates.service", "units/trainyard-updates.timer"}
)
"""Other files on a builder. These files are either removed from the image or replaced by `place` on a node."""
_PARAMETER = re.compile(r"\bTRAINYARD_[A-Z_]+")
_WITHOUT_EFFECT = frozenset({"TRAINYARD_MIRRORS", "TRAINYARD_DISTRIBUTION_MIRRORS"})
_FORMAT = 1
_CLOUD_CONFIG = """#cloud-config
users: []
ssh_pwauth: false
package_update: false
package_upgrade: false
"""


def image_prefix(plan: ClusterPlan) -> str:
    """Return the prefix of all images that the plan's machines can use. It contains the operating system's name."""
    return f"{_PREFIX}{plan.image.os.replace('.', '-')}-"


def baked_name(plan: ClusterPlan, base: str) -> str:
    """Return the name of the image for the plan's machines. The name ends with a hash of the image's content.

    The hash covers the image that the builder boots (`base`), the builder's scripts, and the parameters that these
    scripts read. The hash does not cover the nodes' names and addresses.
    """
    scripts = {file.member: file.text for file in _files(plan) if file.member not in _ON_BUILDER | {MIRRORS}}
    scripts["bake"] = _PROGRAM.read_text()
    read = set(_PARAMETER.findall("".join(scripts.values()))) - _WITHOUT_EFFECT
    kinds = set[str]()
    for host in _kinds(plan):
        parameters = [line for line in kind_env(plan, host).splitlines() if line.partition("=")[0] in read]
        kinds.add(json.dumps([host.role.value, _stages(plan, host), parameters, driver_lock(plan, host)]))
    content = json.dumps([_FORMAT, base, scripts, sorted(kinds)], sort_keys=True)
    return f"{image_prefix(plan)}{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def builder_user_data(plan: ClusterPlan, capture: str = "") -> str:
    """Return a builder's user-data, which contains no keys, so that nobody can log in to the builder.

    The builder runs the stages and the shell commands `capture`, and then shuts down. The builder's console shows the
    progress in lines that begin with "trainyard-bake: ". The last line is "done" or begins with "failed".
    """
    folder = [
        *(NodeFile(file.member, file.text, file.executable) for file in _files(plan)),
        *(file for host in _kinds(plan) for file in _kind_files(plan, host)),
        NodeFile("bake", _PROGRAM.read_text(), executable=True),
        NodeFile("capture", capture),
    ]
    own = NodeFile("/etc/trainyard/birth.env", birth_env(plan, plan.head))
    script = render_install([own, *(replace(file, path=f"{BIRTH}/{file.path}") for file in folder)], _BEGIN)
    return mime_message(_CLOUD_CONFIG, "trainyard-bake", script)


def _kinds(plan: ClusterPlan) -> tuple[HostPlan, ...]:
    return tuple({kind_of(host): host for host in reversed(plan.hosts)}.values())


def _kind_files(plan: ClusterPlan, host: HostPlan) -> Iterator[NodeFile]:
    folder = f"kinds/{kind_of(host)}"
    yield NodeFile(f"{folder}/birth.env", birth_env(plan, host))
    yield NodeFile(f"{folder}/kind.env", kind_env(plan, host))
    # The location of the shared files is not known yet, so nodes receive it with the bundle.
    yield NodeFile(f"{folder}/storage.env", storage_env(host, ON_HEAD))
    yield NodeFile(f"{folder}/stages", "".join(f"{stage}\n" for stage in _stages(plan, host)))
    lock = driver_lock(plan, host)
    if lock is not None:
        yield NodeFile(f"{folder}/driver.lock", lock)


def _files(plan: ClusterPlan) -> Iterator[NodeFile]:
    """Yield the shipped files on the builder, sorted by path."""
    shipped = {file.path: file for host in _kinds(plan) for file in _shipped(plan, host)}
    for _, file in sorted(shipped.items()):
        if file.member in _LIBRARY | _ON_BUILDER or _is_baked(file) or (plan.mirrors and file.member == MIRRORS):
            yield file


def _stages(plan: ClusterPlan, host: HostPlan) -> list[str]:
    return [file.stage for file in _shipped(plan, host) if file.stage and _is_baked(file)]


def _is_baked(file: NodeFile) -> bool:
    return file.stage is not None and (bool(_RUNS_ONCE.search(file.text)) or file.stage in _INSTALLS_ONCE)


def _shipped(plan: ClusterPlan, host: HostPlan) -> tuple[NodeFile, ...]:
    return files_for(host.machine.fabric, plan.containers, host.driver)
