"""User-data: the cloud-config, its validation with cloud-init, and the install script."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from components.catalog import fabrics, images
from components.node import user_data
from components.node.files import BIRTH, NodeFile, files_for, render_install, shipped_files
from components.node.parameters import birth_env, kind_env, node_env
from components.node.user_data import AccessKeys, birth_of, cloud_config, install_script, merge, render_user_data
from components.plan.plan import ClusterPlan, HostPlan
from components.spec.model import PlatformSpec
from tests.conftest import ROOT
from trainyard.errors import CatalogError

KEYS = AccessKeys("ssh-ed25519 AAAAauthority authority@yard")
FILES = ROOT / "cloud-init" / "files"


def shell_reads(text: str) -> dict[str, str]:
    command = ["bash", "-euc", 'set -a; source /dev/stdin; env -0 | grep -z "^TRAINYARD_"']
    done = subprocess.run(command, input=text.encode(), capture_output=True, check=True, env={"PATH": os.defpath})
    lines = done.stdout.decode().rstrip("\0").split("\0")
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def written(plan: ClusterPlan, host: HostPlan) -> dict[str, str]:
    """Return the files in the host's install script by path."""
    _, _, rest = install_script(plan, host).partition("\n=== ")
    body, _, _ = rest.partition("END-OF-FILES\nchmod")
    parts = (part.partition("\n") for part in re.split(r"^=== (?=/)", body, flags=re.MULTILINE))
    return {path: text for path, _, text in parts}


def run(files: Iterable[NodeFile], root: Path) -> str:
    """Run the install script with all paths relative to `root`. Return the arguments of its systemctl calls."""
    (root / "bin").mkdir(parents=True)
    shim = root / "bin" / "systemctl"
    shim.write_text(f'#!/bin/sh\necho "$@" >>{root}/systemctl-args\n')
    shim.chmod(0o755)
    for folder in ("usr/local/lib", "usr/local/sbin", "etc/systemd/system/multi-user.target.wants"):
        (root / folder).mkdir(parents=True)
    moved = re.sub(r"(?<![\w.}\"/])/(etc|usr/local|var/lib)/", rf"{root}/\1/", render_install(files))
    path = f"{root / 'bin'}:{os.environ['PATH']}"
    subprocess.run(["bash", "-c", moved], check=True, env={"PATH": path}, timeout=30)
    return (root / "systemctl-args").read_text()


@pytest.fixture(scope="module")
def cloud_init_program() -> str:
    """Path of cloud-init. Without it, the test is skipped, or fails in CI."""
    program = shutil.which("cloud-init", path=f"{ROOT / '.trainyard' / 'bin'}{os.pathsep}{os.environ['PATH']}")
    if program is None and not os.environ.get("CI"):
        pytest.skip("needs cloud-init: run tools/setup.sh")
    assert program is not None, "CI needs cloud-init"
    return program


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, local_plan: ClusterPlan) -> Path:
    """A folder with the installed files of the head's user-data."""
    root = tmp_path_factory.mktemp("node")
    files = [NodeFile(path, text, text.startswith("#!")) for path, text in written(local_plan, local_plan.head).items()]
    units = "show --all -p NeedDaemonReload --value trainyard-bootstrap.service*\n"
    assert run(files, root) == f"{units}start --no-block trainyard-bootstrap.service\n"
    return root


@pytest.mark.parametrize("index", [0, 1])
def test_user_data_permits_only_the_authoritys_certificates(local_plan: ClusterPlan, index: int) -> None:
    admin, trainer = yaml.safe_load(cloud_config(local_plan, local_plan.hosts[index], KEYS))["users"]
    assert admin["ssh_authorized_keys"] == [
        f"restrict {KEYS.authority}",
        f'cert-authority,principals="admin" {KEYS.authority}',
        # The head's certificate works only from the head, and only to run commands.
        f'restrict,from="10.77.0.4",cert-authority,principals="head" {KEYS.authority}',
    ]
    assert not trainer.keys() & {"ssh_authorized_keys", "sudo"}
    # Workers mount /home from the head, so cloud-init must not write to it.
    assert trainer.get("no_create_home", False) is bool(index)


def test_shell_reads_node_env(local_plan: ClusterPlan) -> None:
    odd = replace(local_plan.workers[1], name="a b'; reboot #")
    assert written(local_plan, odd)["/etc/trainyard/birth.env"] == birth_env(local_plan, odd)
    head, worker = (shell_reads(node_env(local_plan, host)) for host in (local_plan.head, odd))
    names = ("NODE", "ROLE", "GROUP", "GPU_DEVICE", "SHARED_NFS", "RDMA_DEVICES")
    assert [worker[f"TRAINYARD_{name}"] for name in names] == [odd.name, "worker", "gpu", "/dev/fakegpu", "4.2", ""]
    assert [head[f"TRAINYARD_{name}"] for name in names] == ["yard-head", "head", "", "", "4.2", ""]
    assert head.keys() == worker.keys()


def test_depends_on_neither_platform_nor_other_workers(local_plan: ClusterPlan) -> None:
    first, second = (render_user_data(local_plan, host, KEYS) for host in local_plan.workers)
    assert first.replace("yard-gpu-0", "yard-gpu-1").replace("10.77.2.1", "10.77.2.2") == second
    other = PlatformSpec(provider="some-cloud", image="debian-13")
    alone = replace(local_plan, platform=other, workers=local_plan.workers[:1])
    assert render_user_data(alone, alone.workers[0], KEYS) == first


def test_contains_only_the_authoritys_key(plan_of_each_image: ClusterPlan) -> None:
    for host in plan_of_each_image.hosts:
        text = render_user_data(plan_of_each_image, host, KEYS)
        assert set(re.findall(r"(?:ssh-(?:ed25519|rsa)|ecdsa-\S+) AAAA\S+", text)) == {"ssh-ed25519 AAAAauthority"}


def test_contains_no_secrets(plan_of_each_image: ClusterPlan) -> None:
    secret = re.compile(r"PRIVATE KEY|BEGIN |(?<!lock_)passwd:|password:|chpasswd|v1:[A-Za-z0-9+/]{8}")
    for host in plan_of_each_image.hosts:
        text = render_user_data(plan_of_each_image, host, KEYS)
        assert not secret.search(text)
        assert max(len(word) for word in re.findall(r"[A-Za-z0-9+/]+={0,2}", text)) < 120, "an encoded secret?"


def run_cloud_init(program: str, code: str, *arguments: Path) -> subprocess.CompletedProcess[str]:
    """Run Python code that imports cloud-init's modules from the folder in tools/setup.sh's `program`."""
    found = re.search(r"PYTHONPATH=(\S+)", Path(program).read_text(errors="replace"))
    if found is None:
        pytest.skip("needs cloud-init from tools/setup.sh")
    command = [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": found[1]}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_cloud_config_of_each_image_is_valid(tmp_path: Path, local_plan: ClusterPlan, cloud_init_program: str) -> None:
    plans = [replace(local_plan, image=image) for image in images().values()]
    valid = {cloud_config(plan, plan.head, KEYS) for plan in plans}
    valid.add(cloud_config(local_plan, local_plan.workers[0], KEYS))
    for number, text in enumerate(sorted(valid)):
        (tmp_path / f"{number}.yaml").write_text(text)
    # All files are checked in one process, because the import of cloud-init takes half a second.
    code = (
        "import sys; from cloudinit.config.schema import get_schema, validate_cloudconfig_file; schema = get_schema(); "
        "print(*(validate_cloudconfig_file(file, schema) for file in sys.argv[1:]))"
    )
    done = run_cloud_init(cloud_init_program, code, *tmp_path.iterdir())
    assert done.stdout.split() == ["True"] * len(valid), done.stderr
    invalid = tmp_path / "invalid.yaml"
    invalid.write_text("#cloud-config\nwrite_files:\n- path: /x\n  permissions: 0644\n")
    assert "write_files.0.permissions" in run_cloud_init(cloud_init_program, code, invalid).stderr


def test_cloud_init_parses_user_data(tmp_path: Path, local_plan: ClusterPlan, cloud_init_program: str) -> None:
    (tmp_path / "user-data").write_text(render_user_data(local_plan, local_plan.head, KEYS))
    code = (
        "import sys; from cloudinit.user_data import convert_string; "
        "parts = convert_string(open(sys.argv[1], 'rb').read()).get_payload(); "
        "sys.stdout.write(parts[1].get_payload())"
    )
    done = run_cloud_init(cloud_init_program, code, tmp_path / "user-data")
    assert done.stdout == install_script(local_plan, local_plan.head)


def test_merge_concatenates_lists_and_refuses_two_values() -> None:
    first: dict[str, Any] = {"a": [1], "c": 3}
    assert merge(first, {"a": [2], "d": None}) == {"a": [1, 2], "c": 3, "d": None}
    assert first == {"a": [1], "c": 3}
    for second in ({"c": 4}, {"a": 1}, {"a": None}):
        with pytest.raises(CatalogError, match=r"fragments set [ac]; keep it in one"):
            merge(first, second)


def test_refuses_fragments_with_generated_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local_plan: ClusterPlan
) -> None:
    (tmp_path / "base.yaml").write_text("#cloud-config\nhostname: mine\n")
    (tmp_path / "head.yaml").write_text("#cloud-config\n")
    monkeypatch.setattr(user_data, "_FOLDER", tmp_path)
    with pytest.raises(CatalogError, match="hostname, which are generated for each host"):
        user_data._shared.__wrapped__(local_plan.head.role, local_plan.image.name)


def test_the_identity_of_machines_does_not_change(local_plan: ClusterPlan) -> None:
    """Other values would replace the machines of all existing stacks."""
    keys = AccessKeys("ssh-ed25519 AAAAadmin admin@yard", "ssh-ed25519 AAAAcluster cluster@yard")
    found = [birth_of(local_plan, host, keys).identity[:16] for host in local_plan.hosts[:2]]
    assert found == ["7c035d9f1294c32c", "d9bd38593af0c446"]


def test_files_of_user_data_become_the_active_bundle(installed: Path, local_plan: ClusterPlan) -> None:
    library = installed / "usr/local/lib/trainyard"
    assert library.readlink() == installed / "var/lib/trainyard/bundles/birth"
    assert (library / "kinds/head/stages").read_text() == "10-base\n15-archive\n20-apt\n30-driver\n"
    assert {path.name for path in (library / "stages").iterdir()} == {"10-base", "15-archive", "20-apt", "30-driver"}
    for name in ("trainyard-allow-format", "trainyard-receive", "trainyard-status"):
        program = installed / "usr/local/sbin" / name
        assert program.resolve() == (library / "sbin" / name).resolve()
        assert program.stat().st_mode & 0o777 == 0o755
    unit = installed / "etc/systemd/system/trainyard-bootstrap.service"
    assert unit.read_text() == (library / "units" / unit.name).read_text()
    # Only the bundle contains the storage parameters.
    text = (installed / "etc/trainyard/node.env").read_text()
    assert text == birth_env(local_plan, local_plan.head) + kind_env(local_plan, local_plan.head)


def test_the_bring_up_starts_again_after_a_crash(installed: Path, local_plan: ClusterPlan) -> None:
    units = installed / "etc/systemd/system"
    link = units / "multi-user.target.wants/trainyard-bootstrap.service"
    assert link.readlink() == units / link.name
    # The files are on the disk before the bring-up starts.
    assert "\nsync -f /etc/systemd/system\nsystemctl start " in install_script(local_plan, local_plan.head)


def test_shipped_files_have_only_comments_that_are_read() -> None:
    for file in shipped_files():
        original = (FILES / file.path.lstrip("/")).read_text()
        assert "\t" not in original, file.path
        assert not re.search(r" $", original, re.MULTILINE), file.path
        assert original.isascii(), file.path
        kept = [
            line
            for line in original.splitlines()
            if not re.match(r" *# (?!(?:runs|inputs|fabrics|containers|drivers|next to jobs|later stages): )", line)
        ]
        assert file.text.splitlines() == kept, file.path
        assert file.text.startswith("#!") == file.executable, file.path
        if file.text.startswith("#!/usr/bin/env bash") or file.stage:
            subprocess.run(["bash", "-n"], input=file.text, text=True, check=True)
        if file.stage:
            assert len(re.findall(r"^# next to jobs: (?:yes|no)$", file.text, re.MULTILINE)) == 1, file.path
            assert len(re.findall(r"^# runs: (?:once|every boot|every pass)$", file.text, re.MULTILINE)) == 1, file.path


def test_keeps_empty_files_and_special_characters(tmp_path: Path) -> None:
    odd = 'a $HOME `date` \\n "quoted" %s\n'
    place = NodeFile(f"{BIRTH}/place", "#!/bin/sh\n", executable=True)
    run([NodeFile("/etc/x/empty", ""), NodeFile("/etc/x/odd", odd), place], tmp_path)
    assert (tmp_path / "etc/x/empty").read_text() == ""
    assert (tmp_path / "etc/x/odd").read_text() == odd


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/x", "no newline at the end"),
        ("/x", "a\nEND-OF-FILES\nb\n"),
        ("/x", "a\n=== /etc/passwd\n"),
        ("relative", "a\n"),
        ("/with space", "a\n"),
        ("/a$b", "a\n"),
    ],
)
def test_refuses_files_that_would_break_the_script(path: str, text: str) -> None:
    with pytest.raises(CatalogError, match="cannot contain"):
        render_install([NodeFile(path, text)])


@pytest.mark.parametrize(
    ("text", "choice", "needed"),
    [
        ("# fabrics: gvnic gpudirect-gib\n", ("gpudirect-gib", "none"), True),
        ("# fabrics: gvnic gpudirect-gib\n", ("gpudirect", "docker"), False),
        ("echo '# fabrics: x'\n", ("ethernet", "none"), True),
        ("# fabrics: gpudirect-tcpx\n# containers: docker enroot\n", ("ethernet", "docker"), True),
        ("# fabrics: gpudirect-tcpx\n# containers: docker enroot\n", ("gpudirect-tcpx", "none"), True),
        ("# fabrics: gpudirect-tcpx\n# containers: docker enroot\n", ("ethernet", "none"), False),
    ],
)
def test_selects_files_by_fabric_and_container_runtime(text: str, choice: tuple[str, str], needed: bool) -> None:
    assert NodeFile("/a", text).is_needed(*choice) is needed


def test_contains_all_files_that_stages_source() -> None:
    for choice in product(fabrics(), ["none", "docker", "enroot"], ["image", "install"]):
        texts = {file.path: file.text for file in files_for(*choice)}
        for path, text in texts.items():
            sourced = re.findall(r"^source (/usr/local/lib/trainyard/\S+)$", text, re.MULTILINE)
            assert texts.keys() >= set(sourced), (choice, path)
