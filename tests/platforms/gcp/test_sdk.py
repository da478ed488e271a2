"""The platform imports a handful of the SDK's modules. In a process of its own: imports cannot be undone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
SCRIPT = """
import sys
import components.platforms.gcp.platform
print(len([name for name in sys.modules if name.startswith("pulumi_gcp.compute.")]))
import warnings
warnings.simplefilter("ignore")  # the SDK's own deprecations, of modules that we never touch
import pulumi_gcp
from pulumi_gcp.compute.instance import Instance
print(pulumi_gcp.compute.Instance is Instance, pulumi_gcp.compute.ForwardingRule.__name__)
"""


def test_few_modules_and_the_whole_package_for_who_asks() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, check=True, capture_output=True, text=True)
    loaded, same = done.stdout.splitlines()
    assert int(loaded) < 15
    assert same == "True ForwardingRule"
