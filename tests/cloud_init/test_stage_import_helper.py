"""The kernel module of GPUDirect-TCPXO, which the stage builds for the node's kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cloud_init.stage_sandbox import Ran
from tests.cloud_init.test_stage_transport import KERNEL, SOURCE, Docker, fresh


def build(tmp_path: Path, kernel: str, answers: dict[str, str] | None = None) -> tuple[Ran, str]:
    """Run the stage on a node without the module. Return the stage's result and the source that dkms builds."""
    made = fresh(tmp_path, {"dkms status": "0 ", "uname": f"0 {kernel}\n"} | (answers or {}))
    made = Docker(made.root, tuple(name for name in made.recorded if name != "mv"), made.answers)
    keyrings = tmp_path / "usr/share/keyrings"
    keyrings.mkdir(parents=True)
    for name in ("artifact-registry", "gpudirect-tcpxo-apt"):
        (keyrings / f"trainyard-{name}.asc").touch()
    bin_folder = tmp_path / ".bin"
    bin_folder.mkdir()
    package = "usr/src/dmabuf-import-helper-1.1"
    unpack = bin_folder / "dpkg-deb"
    unpack.write_text(f"#!/bin/bash\nmkdir -p {package}\nprintf '{SOURCE}' >{package}/import-helper.c\n")
    unpack.chmod(0o755)
    download = bin_folder / "apt-get"
    download.write_text(
        f'#!/bin/bash\necho "apt-get $*" >>{tmp_path}/.log\n[[ $* != *download* ]] || touch helper.deb\n'
    )
    download.chmod(0o755)
    # The two scripts above replace the recorders of these commands.
    kept = tuple(name for name in made.recorded if name not in {"dpkg-deb", "apt-get"})
    ran = Docker(made.root, kept, made.answers).run("45-transport", FABRIC="gpudirect-tcpxo", GPUS="1")
    source = tmp_path / package / "import-helper.c"
    return ran, source.read_text() if source.exists() else ""


@pytest.mark.parametrize(
    ("kernel", "line"),
    [
        (KERNEL, 'MODULE_IMPORT_NS("DMA_BUF");'),
        ("6.13.0-1-gcp", 'MODULE_IMPORT_NS("DMA_BUF");'),
        ("6.8.0-1035-gcp", "MODULE_IMPORT_NS(DMA_BUF);"),
    ],
)
def test_the_import_helper_is_patched_for_newer_kernels(tmp_path: Path, kernel: str, line: str) -> None:
    """GoogleCloudPlatform/cluster-toolkit at 104708037, a3mega-slurm-blueprint.yaml, install_dmabuf.yml."""
    ran, source = build(tmp_path, kernel)
    assert ran.code == 0, (ran.errors, ran.output)
    assert line in source
    module = "-m dmabuf-import-helper -v 1.1"
    steps = [text for text in ran.commands if text.startswith("dkms") and "status" not in text]
    assert steps == [f"dkms remove {module} --all", *(f"dkms {step} {module}" for step in ("add", "build", "install"))]
    assert any(line.endswith(f"install linux-headers-{kernel}") for line in ran.commands)
    assert not any("install dmabuf-import-helper" in line for line in ran.commands)


def test_failed_module_build_fails_the_stage(tmp_path: Path) -> None:
    ran, _ = build(tmp_path, KERNEL, {"dkms build": "1 "})
    assert ran.code == 1
    assert ran.output[-1].startswith(f"fail dmabuf-import-helper 1.1 does not build for {KERNEL}: ")
    assert "modprobe import-helper" not in ran.commands


def test_installed_module_is_not_built_again(tmp_path: Path) -> None:
    ran = fresh(tmp_path).run("45-transport", FABRIC="gpudirect-tcpxo", GPUS="1")
    assert [line.split()[1] for line in ran.commands if line.startswith("dkms")] == ["status"]
