"""Scripts that install the files of all stages and run a stage, for a machine that receives no hand-over."""

from __future__ import annotations

from dataclasses import replace

from components.node.bundle import bundle_files
from components.node.files import NodeFile
from components.node.install import BIRTH, render_install
from components.node.parameters import ON_HEAD, birth_env
from components.plan.plan import ClusterPlan, HostPlan

_STAGE = """
mkdir -p /run/trainyard /var/lib/trainyard
bash -c 'source /usr/local/lib/trainyard/stage.sh; source "$1"' {name} /usr/local/lib/trainyard/stages/{name} 2>&1
"""


def install_all(plan: ClusterPlan, host: HostPlan) -> str:
    """Return a script that installs the files of the bundle as if they were part of user-data."""
    files = [replace(file, path=f"{BIRTH}/{file.path}") for file in bundle_files(plan, ON_HEAD)]
    own = NodeFile("/etc/trainyard/birth.env", birth_env(plan, host))
    return render_install([own, *files], begin="true")


def run_stage(name: str) -> str:
    """Return a command that runs a stage in the same way as the bootstrap runs it."""
    return _STAGE.format(name=name)
