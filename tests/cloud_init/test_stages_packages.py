"""The stages 15-archive and 20-apt: preferences and mirrors of package archives, locks and start policies."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.catalog import images
from components.node.files import mirror_program
from tests.cloud_init.stage_sandbox import STAGES, Sandbox, bash, function


@pytest.mark.parametrize("os", sorted({image.os for image in images().values()}))
def test_stage_supports_the_distribution_of_each_image(tmp_path: Path, os: str) -> None:
    Sandbox(tmp_path).run("15-archive", OS=os).passed()
    origin = "Debian" if os.startswith("debian") else "Ubuntu"
    assert f"Pin: release o={origin}\n" in (tmp_path / "etc/apt/preferences.d/00-trainyard").read_text()


def test_apt_preferences_are_unchanged_without_slurm(tmp_path: Path) -> None:
    Sandbox(tmp_path).run("15-archive", OS="ubuntu-24.04", SCHEDULER="none").passed()
    assert not (tmp_path / "etc").exists()


LOCKED = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (apt-get)"
UNSIGNED = "Err:3 https://drivers.example noble InRelease\nE: The repository is not signed."
UNREADABLE = "WARNING: apt cannot read these package archives: https://drivers.example noble InRelease"


def apt_update(tmp_path: Path, *answers: tuple[int, str], file: str = "") -> tuple[int, int, str]:
    """Run apt_update with a fake apt-get that gives these results. Return exit code, number of calls and output."""
    for index, (code, text) in enumerate(answers, start=1):
        (tmp_path / f"{index}").write_text(f"cat <<'TEXT' >&2\n{text}\nTEXT\nexit {code}\n")
    script = f"""calls=0
apt-get() {{ calls=$((calls + 1)); bash {tmp_path}/$calls; }}
pause() {{ :; }}
log() {{ printf '%s\\n' "$*"; }}
{function(STAGES.parent / "stage.sh", "apt_update").replace("/run/trainyard/apt-update", f"{tmp_path}/log")}
code=0
apt_update {file} || code=$?
echo $code $calls
"""
    *output, last = bash(script).splitlines()
    exit_code, calls = last.split()
    return int(exit_code), int(calls), "\n".join(output)


@pytest.mark.parametrize(
    ("answers", "file", "result", "warning"),
    [
        ([(100, LOCKED), (100, LOCKED), (0, "Reading package lists...")], "", (0, 3), ""),
        ([(100, UNSIGNED)], "", (0, 1), UNREADABLE),
        ([(100, UNSIGNED), (0, "")], "/etc/apt/sources.list.d/drivers.list", (100, 1), ""),
        ([(100, "E: Malformed entry 1 in list file"), (0, "")], "", (100, 1), ""),
    ],
)
def test_apt_update_waits_warns_or_fails(
    tmp_path: Path, answers: list[tuple[int, str]], file: str, result: tuple[int, int], warning: str
) -> None:
    code, calls, output = apt_update(tmp_path, *answers, file=file)
    assert (code, calls) == result
    assert warning in output


APT_NODE = {"ROLE": "worker", "GROUP": "gpu", "OS": "debian-13", "GPU_DEVICE": "/dev/nvidia", "SCHEDULER": "none"}


@pytest.mark.parametrize(
    ("env", "has_module"),
    [({}, True), ({"ROLE": "head"}, False), ({"TEST_LEDGER": "yes"}, False), ({"SCHEDULER": "none"}, False)],
)
def test_created_workers_have_slurms_module_for_logins(tmp_path: Path, env: dict[str, str], has_module: bool) -> None:
    (tmp_path / "usr/sbin").mkdir(parents=True)
    node = Sandbox(tmp_path, ("apt-get", "systemctl", "chmod"))
    ran = node.run("20-apt", **APT_NODE | {"SCHEDULER": "slurm"} | env).passed()
    assert (" libpam-slurm-adopt" in ran.calls("apt-get -q -y")[0]) is has_module


@pytest.mark.parametrize("code", ["0", "1"])
def test_node_is_set_up_despite_a_broken_archive(tmp_path: Path, code: str) -> None:
    (tmp_path / "usr/sbin").mkdir(parents=True)
    answers = {"apt-get -q update": f"1 {UNSIGNED}\n", "apt-get -q -y": f"{code} "}
    ran = Sandbox(tmp_path, ("apt-get", "systemctl", "chmod"), answers).run(
        "20-apt", **APT_NODE | {"SCHEDULER": "slurm"}
    )
    assert f"log {UNREADABLE}" in ran.output
    assert ran.code == int(code), ran.errors
    failure = ", and these package archives cannot be read: https://drivers.example noble InRelease. Fix: "
    assert (failure in ran.output[-1]) is bool(int(code))


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(
    ("policy", "left"),
    [(None, None), ("#!/bin/sh\nexit 0\n", "#!/bin/sh\nexit 0\n"), ("#!/bin/sh\n# trainyard\nexit 101\n", None)],
)
def test_existing_policy_rc_d_is_restored(tmp_path: Path, policy: str | None, left: str | None, fails: bool) -> None:
    node = Sandbox(tmp_path, ("apt-get", "systemctl"), {"apt-get -q -y": "1 "} if fails else {})
    (tmp_path / "usr/sbin").mkdir(parents=True)
    if policy is not None:
        node.write({"usr/sbin/policy-rc.d": policy})
    ran = node.run("20-apt", **APT_NODE)
    assert (bool(ran.code), node.read("usr/sbin/policy-rc.d")) == (fails, left)


SOURCES = {
    "etc/apt/sources.list": "deb http://archive.example.org/debian/ trixie main\n",
    "etc/apt/sources.list.d/debian.sources": "URIs: https://a.example.org/debian\nSuites: trixie\n",
    "etc/apt/mirrors/debian.list": "https://archive.example.org/debian\n",
    "etc/apt/sources.list.d/other.list": "deb http://packages.example.org/debian trixie main\n",
    "etc/apt/sources.list.d/cuda.list": "deb https://developer.download.nvidia.com/compute/cuda/repos/u /\n",
}


@pytest.fixture
def node(tmp_path: Path) -> Sandbox:
    """A node with these sources, on which all packages are installed."""
    made = Sandbox(tmp_path, ("apt-get",))
    names = ("pdsh", "nfs-common", "rsync", "python3", "chrony", "unattended-upgrades")
    made.write({**SOURCES, "usr/local/lib/trainyard/mirrors.sh": ""})
    made.write({f"var/lib/dpkg/info/{name}.list": "" for name in names})
    return made


def sources(node: Sandbox, **mirrors: str) -> list[str]:
    """Run the stage with these mirrors. Return the contents of the files in SOURCES."""
    programs = (mirror_program(mirrors), mirror_program(mirrors, distribution=True))
    ran = node.run("20-apt", **APT_NODE, MIRRORS=programs[0], DISTRIBUTION_MIRRORS=programs[1]).passed()
    assert ran.commands == []
    return [(node.root / path).read_text() for path in SOURCES]


def test_archives_of_the_image_are_replaced_by_mirrors(node: Sandbox) -> None:
    assert sources(node, debian="http://m/d", nvidia_cuda="http://m/cuda") == [
        "deb http://m/d/ trixie main\n",
        "URIs: http://m/d\nSuites: trixie\n",
        "http://m/d\n",
        # Addresses of the distribution's archives are replaced only in the distribution's own files.
        SOURCES["etc/apt/sources.list.d/other.list"],
        "deb http://m/cuda/u /\n",
    ]


def test_changed_mirror_applies_to_the_original_sources(node: Sandbox) -> None:
    assert sources(node) == list(SOURCES.values())
    assert not (node.root / "var/lib/trainyard").exists()
    sources(node, debian="http://m/d")
    assert sources(node, debian="http://n/d")[0] == "deb http://n/d/ trixie main\n"
    assert sources(node) == list(SOURCES.values())


def pip_settings(node: Sandbox, index: str) -> str:
    """Run 31-system with this mirror. Return pip's settings."""
    (node.root / "usr/local/bin").mkdir(parents=True, exist_ok=True)
    node.recorded = ("sysctl", "systemctl")
    # The unit does not exist in the sandbox, so an earlier run has left a dangling link, which the stage cannot see.
    (node.root / "etc/systemd/system/timers.target.wants/trainyard-updates.timer").unlink(missing_ok=True)
    node.run("31-system", SHARED_DOMAIN="", PIP_INDEX=index).passed()
    return node.read("etc/pip.conf") or ""


def test_pip_uses_the_mirror_and_keeps_settings_of_others(node: Sandbox) -> None:
    text = pip_settings(node, "http://mirror.example.org:8080/simple")
    assert "\nindex-url = http://mirror.example.org:8080/simple\n" in text
    assert "\ntrusted-host = mirror.example.org:8080\n" in text
    text = pip_settings(node, "https://mirror.example.org/simple")
    assert "index-url" in text
    assert "trusted-host" not in text
    assert pip_settings(node, "") == ""
    node.write({"etc/pip.conf": "[global]\n"})
    assert pip_settings(node, "") == "[global]\n"
