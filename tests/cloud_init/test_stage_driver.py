"""The installation of NVIDIA's driver, in a sandbox with recorded commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cloud_init.stage_sandbox import Ran, Sandbox

COMMANDS = (
    *("apt-get", "apt-cache", "dpkg-query", "dpkg", "dkms", "modinfo", "uname", "df", "modprobe", "systemctl"),
    *("nvidia-smi", "timeout", "install", "curl", "gpg"),
)
KERNEL, DRIVER, HASH = "6.12.117+deb13-cloud-amd64", "550.163.01", "a" * 64
LOCK = f"""driver {DRIVER}
module nvidia-current-open
archive debian /usr/share/keyrings/debian.gpg - - trixie contrib
package nvidia-smi {DRIVER}-4 {HASH}
package nvidia-dkms {DRIVER}-* -
file ROOT/etc/dkms/nvidia.conf
| # fix
|
| MAKE[0]="sed -i 's/a/b/' x && ${{MAKE[0]}}"
file ROOT/etc/dkms/other.conf
| two
"""
INDEX = f"""Package: nvidia-smi
Version: {DRIVER}-2
SHA256: {"b" * 64}

Package: nvidia-smi
Version: {DRIVER}-4
SHA256: {HASH}

Package: nvidia-dkms
Version: {DRIVER}-1ubuntu1
SHA256: {"c" * 64}
"""
INSTALLED = f"0  nvidia-smi={DRIVER}-4=installed\n nvidia-dkms={DRIVER}-1ubuntu1=installed\n"
TARGETS = "apt-get indextargets --no-release-info"
GPU = {"sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n", "sys/bus/pci/devices/0000:01:00.0/class": "0x030200\n"}
ANSWERS = {
    "uname": f"0 {KERNEL}\n",
    "modinfo": f"0 {DRIVER}\n",
    "apt-cache show": f"0 {INDEX}",
    # Without this option, apt lists only sources whose indexes it has read.
    TARGETS: "0 /x/trainyard-driver.list:1 trixie http://old/debian\n/x/y.list:1 trixie http://m/debian/\n",
    "df": "0 Avail\n9000\n8000\n",
    "nvidia-smi -L": "0 GPU 0: NVIDIA A100\n",
}


def node(root: Path, answers: dict[str, str] | None = None, lock: str = LOCK, **files: str) -> Sandbox:
    """A node with one GPU and a lock, and without an installed driver. `files`: see GPU."""
    has_gpu = GPU if answers is None or "no gpu" not in answers else {}
    always = {
        "etc/os-release": "VERSION_CODENAME=trixie\n",
        "etc/trainyard/driver.lock": lock.replace("ROOT", str(root)),
    }
    for path, text in {**always, **has_gpu, **files}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return Sandbox(
        root, COMMANDS, (answers or {}) | {key: ANSWERS[key] for key in ANSWERS if key not in (answers or {})}
    )


def run(sandbox: Sandbox, **env: str) -> Ran:
    facts = {
        "GPUS": "1",
        "GPU_TYPE": "a100",
        "GPU_DEVICE": "/dev/nvidia",
        "GROUP": "gpu",
        "NODE": "n",
        "OS": "debian-13",
    }
    return sandbox.run("30-driver", DRIVER_FROM="install", DRIVER=DRIVER, **facts | env)


def test_locked_packages_are_installed(tmp_path: Path) -> None:
    ran = run(node(tmp_path, {"modprobe nvidia": "1 stop here"}))
    install = "apt-get -q -y --no-install-recommends --allow-change-held-packages --allow-downgrades install "
    assert f"{install}nvidia-smi={DRIVER}-4 nvidia-dkms={DRIVER}-*" in ran.commands
    assert f"apt-get -q -y --no-install-recommends install linux-headers-{KERNEL}" in ran.commands
    source = (tmp_path / "etc/apt/sources.list.d/trainyard-driver.list").read_text()
    assert source.endswith("debian.gpg] http://m/debian trixie contrib\n")
    assert ran.output[-1] == "fail modprobe nvidia: stop here"
    fix = "# fix\n\nMAKE[0]=\"sed -i 's/a/b/' x && ${MAKE[0]}\"\n"
    assert [(tmp_path / f"etc/dkms/{name}.conf").read_text() for name in ("nvidia", "other")] == [fix, "two\n"]


def test_installed_driver_is_not_downloaded_again(tmp_path: Path) -> None:
    version = {"sys/module/nvidia/version": f"{DRIVER}\n"}
    ran = run(node(tmp_path, {"dpkg-query": INSTALLED, "timeout 120 nvidia-smi -L": "0 GPU 0: A100\n"}, **version))
    assert ran.code == 0, ran.errors
    assert not [line for line in ran.commands if line.startswith(("apt-", "dkms", "dpkg "))]


def test_machine_without_a_gpu_fails_after_the_installation(tmp_path: Path) -> None:
    ran = run(node(tmp_path, {"no gpu": "0 "}), GPU_TYPE="fake")
    assert ran.code == 1
    assert ran.output[-1].startswith(
        f"fail driver {DRIVER} is installed for kernel {KERNEL}, but this machine has no NVIDIA GPU. Fix: remove "
    )


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (
            INDEX.replace("-4\n", "-3\n"),
            f"nvidia-smi {DRIVER}-4 with SHA-256 {HASH}, and the archives have {DRIVER}-2 {DRIVER}-3",
        ),
        (INDEX.replace(HASH, "d" * 64), f"(SHA-256 {'d' * 64})"),
        ("", "and the archives have no such package"),
    ],
)
def test_package_that_differs_from_the_lock_is_refused(tmp_path: Path, index: str, words: str) -> None:
    ran = run(node(tmp_path, {"apt-cache show": f"0 {index}"}))
    assert ran.code == 1
    assert words in ran.output[-1]
    assert "Fix: use a mirror that has the locked version" in ran.output[-1]
    assert not [line for line in ran.commands if " install " in line]


def test_unreachable_archive_is_reported(tmp_path: Path) -> None:
    reason = "E: Failed to fetch http://m/debian/dists/trixie/InRelease  Could not connect"
    sandbox = node(tmp_path, {"apt-get -q update": f"100 Err:1 http://m\n{reason}\n"})
    ran = run(sandbox)
    assert ran.code == 1
    assert ran.output[-1].startswith(f"fail driver {DRIVER}: a package archive cannot be read ({reason}). Fix: check")
    assert (
        " http://m/debian trixie contrib\n" in (tmp_path / "etc/apt/sources.list.d/trainyard-driver.list").read_text()
    )


def test_sources_without_the_distribution_are_an_error(tmp_path: Path) -> None:
    ran = run(node(tmp_path, {TARGETS: "0 /x/y.list:1 trixie-updates http://m/debian\n"}))
    assert ran.code == 1
    assert "the apt sources of this node do not contain the archive of debian-13. Fix: " in ran.output[-1]


def test_installation_needs_free_space(tmp_path: Path) -> None:
    ran = run(node(tmp_path, {"df": "0 Avail\n9000\n1535\n"}))
    assert ran.code == 1
    assert ran.output[-1].startswith(
        f"fail driver {DRIVER}: its installation needs 1536 MiB on /usr and /var, and 1535 MiB"
    )
    assert not [line for line in ran.commands if " install " in line]


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("", "apt-get cannot install the packages"),
        (
            "nv.c:1: error: too few arguments\n",
            f"DKMS cannot build the modules for kernel {KERNEL} (nv.c:1: error: too few",
        ),
    ],
)
def test_failed_installation_is_explained(tmp_path: Path, log: str, words: str) -> None:
    failed = {"apt-get -q -y --no-install-recommends --allow": "100 ", "modinfo": "1 "}
    ran = run(node(tmp_path, failed, **{f"var/lib/dkms/nvidia/{DRIVER}/build/make.log": log}))
    assert ran.code == 1
    assert words in ran.output[-1]


def test_interrupted_installation_needs_less_space(tmp_path: Path) -> None:
    unpacked = {"dpkg-query -W -f  ${db:Status-Status}": "0  unpacked\n", "df": "0 Avail\n9000\n900\n"}
    ran = run(node(tmp_path, {**unpacked, "modprobe nvidia": "1 stop here"}))
    assert "dpkg --configure -a" in ran.commands
    assert ran.output[-1] == "fail modprobe nvidia: stop here"


def test_kernel_without_headers_is_an_error(tmp_path: Path) -> None:
    ran = run(node(tmp_path, {"apt-get -q -y --no-install-recommends install linux-headers": "100 ", "modinfo": "1 "}))
    assert ran.code == 1
    assert f"apt-get cannot install linux-headers-{KERNEL}, which the build" in ran.output[-1]


def test_module_is_built_for_a_new_kernel(tmp_path: Path) -> None:
    ran = run(node(tmp_path, {"modinfo": "0 "}))
    assert f"dkms autoinstall -k {KERNEL}" in ran.commands
    assert f"fail driver {DRIVER}: kernel {KERNEL} has no module nvidia-current-open of this version" in ran.output[-1]


@pytest.mark.parametrize(
    ("existing", "words", "reboots"),
    [
        ("", "and the reboot did not start", 1),
        ("/ledger", "Fix: reboot this host, then run pulumi up again", 0),
    ],
)
def test_machine_reboots_once_if_nouveau_is_in_use(tmp_path: Path, existing: str, words: str, reboots: int) -> None:
    sandbox = node(tmp_path, {"dpkg-query": INSTALLED, "modprobe -r nouveau": "1 "}, **{"sys/module/nouveau/x": ""})
    (tmp_path / "var/lib/trainyard").mkdir(parents=True)
    ran = run(sandbox, TEST_LEDGER=existing)
    assert words in ran.output[-1]
    assert ran.commands.count("systemctl reboot") == reboots
    if reboots:
        again = run(sandbox)
        assert "the module nouveau uses the GPUs, also after a reboot" in again.output[-1]
        assert "systemctl reboot" not in again.commands


def test_other_loaded_driver_is_unloaded(tmp_path: Path) -> None:
    version = {"sys/module/nvidia/version": "535.1\n"}
    ran = run(node(tmp_path, {"dpkg-query": INSTALLED, "modprobe nvidia": "1 stop here"}, **version))
    assert "modprobe -r nvidia-uvm nvidia-drm nvidia-modeset nvidia-peermem nvidia" in ran.commands


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("", "this machine has NVSwitch, and the lock for debian-13 has no fabric manager"),
        (f"nvswitch nvidia-fabricmanager {DRIVER}-* -\n", "nvidia-fabricmanager"),
    ],
)
def test_nvswitch_needs_the_locked_fabric_manager(tmp_path: Path, extra: str, words: str) -> None:
    files = {"proc/driver/nvidia-nvswitch/devices/0": "", "sys/module/nvidia/version": f"{DRIVER}\n"}
    manager = f"Package: nvidia-fabricmanager\nVersion: {DRIVER}-1\nSHA256: {HASH}\n"
    answers = {
        "dpkg-query -W -f  ${Package}=${Version}=${db:Status-Status}\\n nvidia-smi": INSTALLED,
        "apt-cache show nvidia-fabricmanager": f"0 {manager}",
        "timeout 120 nvidia-smi -L": "0 GPU 0: A100\n",
    }
    ran = run(node(tmp_path, answers, LOCK + extra, **files))
    if extra:
        assert ran.code == 0, ran.output
        assert any(line.endswith(f"install nvidia-fabricmanager={DRIVER}-*") for line in ran.commands)
    else:
        assert words in ran.output[-1]


def test_missing_optional_packages_are_only_a_warning(tmp_path: Path) -> None:
    ran = run(node(tmp_path, {"modprobe nvidia": "1 stop here"}, LOCK + "optional dcgm 1:4.6.0-1 -\n"))
    assert "log WARNING: the archives do not have the locked versions of dcgm" in ran.output
