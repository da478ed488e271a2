"""Size of user-data on each platform, and the installation that it starts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from components.node.user_data import AccessKeys, install_script, render_user_data
from components.plan.plan import ClusterPlan
from components.stackfile.read import read_stack

ROOT = Path(__file__).parents[3]
KEY = f"ssh-ed25519 {'A' * 68} cluster@{'a' * 16}"
"""A placeholder with the length of a real key."""
KEYS = AccessKeys(KEY, KEY)
STACKS = sorted((ROOT / "stacks").glob("Pulumi.*.yaml"))


@pytest.mark.parametrize("file", STACKS, ids=lambda file: file.stem.removeprefix("Pulumi."))
def test_user_data_has_at_most_25_kib(file: Path) -> None:
    plan = read_stack(file).plan
    for host in plan.hosts:
        assert len(render_user_data(plan, host, KEYS).encode()) <= 25 * 1024, host.name


def test_cloud_init_parses_user_data(tmp_path: Path, local_plan: ClusterPlan) -> None:
    program = shutil.which("cloud-init", path=f"{ROOT / '.trainyard' / 'bin'}{os.pathsep}{os.environ['PATH']}")
    found = re.search(r"PYTHONPATH=(\S+)", Path(program).read_text(errors="replace")) if program else None
    if found is None:
        pytest.skip("needs cloud-init: run tools/setup.sh")
    text = render_user_data(local_plan, local_plan.head, KEYS)
    (tmp_path / "user-data").write_text(text)
    code = (
        "import sys; from cloudinit.user_data import convert_string; "
        "parts = convert_string(open(sys.argv[1], 'rb').read()).get_payload(); "
        "sys.stdout.write(parts[1].get_payload())"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, tmp_path / "user-data"],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONPATH": found[1]},
    )
    assert done.stdout.decode() == install_script(local_plan, local_plan.head)
