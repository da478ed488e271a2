"""Packed user-data: other programs read it as gzip, and it is the same bytes wherever it is made."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from components.cloud_init import AccessKeys, render_user_data
from components.packing import pack
from components.plan import ClusterPlan
from components.platforms import platform_class
from components.stackfile import read_stack

ROOT = Path(__file__).parent.parent
KEY = f"ssh-ed25519 {'A' * 68} cluster@{'a' * 16}"
"""As long as a real one."""
KEYS = AccessKeys(KEY, KEY)
STACKS = sorted((ROOT / "stacks").glob("Pulumi.*.yaml"))
SHARED = "=== /usr/x\n"
"""What follows is deflated."""

TEXTS = [
    "",
    "a host's own words only",
    SHARED,
    f"own\n{SHARED}" + "abc" * 400,
    SHARED + "a" * 70_000,
    SHARED + "".join(chr(1 + number * 7919 % 0x2FFF) for number in range(20_000)),
    SHARED + "".join("ab"[number * number % 7 % 2] for number in range(50_000)),
    # Repeats at all distances, up to the farthest that the format knows and beyond.
    SHARED + "".join(f"{distance:05}" + "-" * (distance % 300) for distance in range(0, 33_000, 61)) + "00061",
]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_what_is_packed_comes_out_again(text: str) -> None:
    assert gzip.decompress(pack(text)).decode() == text


def test_the_bytes_never_change() -> None:
    # A change here makes every Azure machine anew.
    text = "name: a\n" + SHARED + "".join(f"line {number} {'x' * (number % 90)}\n" for number in range(500))
    assert hashlib.sha256(pack(text)).hexdigest() == "89fa77f6fe2a8f54d3a77abc5e5083dda52970cd88ae0c7df36a198f63a6c713"


def test_a_hosts_own_part_is_limited() -> None:
    with pytest.raises(ValueError, match="65536 bytes of a host's own; 65535 can be packed"):
        pack("x" * 65_536)


def test_user_data_shrinks_to_half(local_plan: ClusterPlan) -> None:
    text = render_user_data(local_plan, local_plan.head, KEYS)
    assert len(pack(text)) < len(text) // 2


@pytest.mark.parametrize("file", STACKS, ids=lambda file: file.stem.removeprefix("Pulumi."))
def test_user_data_of_every_stack_and_role_is_under_half_the_limit(file: Path) -> None:
    plan = read_stack(file).plan
    platform = platform_class(plan.provider)
    for host in (plan.head, *(plan.group(name)[-1] for name in plan.groups)):
        given = platform.wire_user_data(render_user_data(plan, host, KEYS))
        assert len(given) < platform.user_data_limit / 2, host.name


def test_cloud_init_unpacks_it_first(tmp_path: Path, local_plan: ClusterPlan) -> None:
    # A subprocess, since only cloud-init itself knows what it does with user-data.
    program = shutil.which("cloud-init", path=f"{ROOT / '.trainyard' / 'bin'}{os.pathsep}{os.environ['PATH']}")
    found = re.search(r"PYTHONPATH=(\S+)", Path(program).read_text(errors="replace")) if program else None
    if found is None:
        pytest.skip("the cloud-init that tools/setup.sh fetches is not there")
    text = render_user_data(local_plan, local_plan.head, KEYS)
    (tmp_path / "user-data").write_bytes(pack(text))
    code = (
        "import sys; from cloudinit.user_data import convert_string; "
        "sys.stdout.buffer.write(convert_string(open(sys.argv[1], 'rb').read()).get_payload(decode=True))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, tmp_path / "user-data"],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONPATH": found[1]},
    )
    assert done.stdout.decode() == text
