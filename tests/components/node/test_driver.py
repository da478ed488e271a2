"""Files and parameters of nodes for NVIDIA's driver and for mirrors."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest

from components.catalog import driver_locks
from components.node.bundle import bundle_files
from components.node.install import driver_lock, driver_version, mirror_program
from components.node.parameters import ON_HEAD
from components.node.user_data import install_script
from components.plan.plan import ClusterPlan


def with_driver(plan: ClusterPlan, driver: str) -> ClusterPlan:
    return replace(plan, workers=tuple(replace(host, driver=driver) for host in plan.workers))


def replaced(text: str, program: str) -> str:
    """Return the output of `sed -E` with this program for this text."""
    done = subprocess.run(["sed", "-E", program], input=text, capture_output=True, text=True, check=True)
    return done.stdout


def test_only_nodes_that_install_a_driver_have_its_files(local_plan: ClusterPlan) -> None:
    plan = with_driver(local_plan, "install")
    assert driver_lock(plan, plan.head) is None
    paths = [file.path for file in bundle_files(plan, ON_HEAD)]
    assert [path for path in paths if "driver" in path] == [
        "driver.sh",
        "kinds/worker-gpu/driver.lock",
        "stages/30-driver",
    ]
    assert not [file.path for file in bundle_files(local_plan, ON_HEAD) if file.path.startswith("driver")]


def test_user_data_does_not_depend_on_the_lock(local_plan: ClusterPlan) -> None:
    plan = with_driver(local_plan, "install")
    script = install_script(plan, plan.workers[0])
    assert "/driver.lock\n" not in script
    assert len(script) < len(install_script(local_plan, local_plan.workers[0])) + 100


def test_lock_file_has_a_line_for_each_package(local_plan: ClusterPlan) -> None:
    plan, lock = with_driver(local_plan, "install"), driver_locks()["debian-13"]
    lines = (driver_lock(plan, plan.workers[0]) or "").splitlines()
    assert lines[:2] == ["driver 550.163.01", "module nvidia-current-open"]
    smi = lock.packages["nvidia-smi"]
    assert f"package nvidia-smi {smi.version} {smi.sha256}" in lines
    assert len([line for line in lines if line.startswith("package ")]) == len(lock.packages)
    [(path, text)] = lock.files.items()
    assert lines[lines.index(f"file {path}") + 1 :] == [f"| {line}" for line in text.splitlines()]


def test_expected_driver_is_that_of_the_lock(local_plan: ClusterPlan) -> None:
    plan = with_driver(local_plan, "install")
    assert [driver_version(plan, host) for host in plan.hosts] == ["", "550.163.01", "550.163.01"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("deb http://a.example.org/debian trixie main", "deb http://m/d trixie main"),
        ("deb http://a.example.org/debian/ trixie main", "deb http://m/d/ trixie main"),
        ("URIs: https://a.example.org/debian", "URIs: http://m/d"),
        ("deb http://a.example.org/debian-security x", "deb http://m/s x"),
        ("URIs: http://azure.example.org/ubuntu/", "URIs: http://m/u/"),
        ("URIs: http://a.example.org/ubuntu http://b.example.org/ubuntu", "URIs: http://m/u http://m/u"),
        ("deb http://a.example.org/apt/debian x", "deb http://a.example.org/apt/debian x"),
    ],
)
def test_mirrors_replace_archives_of_the_distribution(line: str, expected: str) -> None:
    mirrors = {"debian": "http://m/d", "debian_security": "http://m/s", "ubuntu": "http://m/u"}
    assert replaced(line, mirror_program(mirrors, distribution=True)) == expected
    assert mirror_program(mirrors) == ""


def test_mirrors_replace_archives_of_vendors() -> None:
    program = mirror_program({"google_cloud": "http://m/g", "debian": "http://m/d"})
    assert replaced("deb https://packages.cloud.google.com/apt x", program) == "deb http://m/g x"
    assert replaced("deb http://a.example.org/debian x", program) == "deb http://a.example.org/debian x"


def test_text_is_unchanged_without_mirrors() -> None:
    assert mirror_program({}) == mirror_program({}, distribution=True) == ""
    assert replaced("deb http://a.example.org/debian x", "") == "deb http://a.example.org/debian x"


def test_user_data_contains_mirrors_only_if_configured(local_plan: ClusterPlan) -> None:
    mirrored = replace(local_plan, mirrors={"debian": "http://m/d"})
    assert "birth/mirrors.sh\n" not in install_script(local_plan, local_plan.head)
    assert "birth/mirrors.sh\n" in install_script(mirrored, mirrored.head)
