"""The set-up scripts, a second set-up in a copy of the checkout, `make demo`, `make clean` and `make down`."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from components.plan.check import Computer
from components.platforms.local.image import find_image, hold_image
from components.platforms.local.spec import LocalSpec
from tests.conftest import ROOT, MakeProgram
from tests.plain_clone import PlainClone
from tests.yard.conftest import git
from tools import demo, down, stack
from tools.clean import clean
from tools.stack import EXCLUDE, refuse_protected
from trainyard import project
from trainyard.errors import StackError

LOCK = (ROOT / "requirements.lock").read_text()
PARTS = ("common", "system", "python", "pulumi", "plugins", "env")


def shell(
    script: str, root: Path = ROOT, user: int | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a shell script after sourcing the files in tools/setup."""
    load = "".join(f"source {ROOT}/tools/setup/{part}.sh; " for part in PARTS)
    command = ["/bin/bash", "-c", f"set -euo pipefail; root='{root}'; {load}{script}"]
    env = {"PATH": os.environ["PATH"], "HOME": str(root), **environment}
    return subprocess.run(command, env=env, user=user, capture_output=True, text=True, check=False)


def put_pulumi(folder: Path, version: str) -> Path:
    folder.mkdir(parents=True)
    program = folder / "pulumi"
    program.write_text(f"#!/bin/sh\necho v{version}\n")
    program.chmod(0o755)
    return program


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a process as another user")
def test_missing_packages_are_printed_without_root_and_sudo() -> None:
    done = shell("require_root_for qemu-utils vde2", user=65534, PATH="/nonexistent")
    assert done.returncode == 1
    assert "apt-get install --no-install-recommends qemu-utils vde2" in done.stderr


def test_pulumi_on_path_is_used_if_new_enough(tmp_path: Path) -> None:
    # Versions are compared by number.
    put_pulumi(tmp_path / "old", "3.99.9")
    put_pulumi(tmp_path / "new", "3.1000.0")
    choose = 'choose_pulumi; echo "$pulumi_choice $pulumi_dir"'
    done = shell(choose, root=tmp_path, PATH=f"{tmp_path}/old:{tmp_path}/new:/usr/bin:/bin")
    assert done.stdout.strip() == f"path {tmp_path}/new"
    # A link to a cached build is not the user's own program.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "pulumi").symlink_to(put_pulumi(tmp_path / "cache" / "pulumi" / "x", "3.260.1"))
    path = f"{tmp_path}/bin:/usr/bin:/bin"
    done = shell(choose, root=tmp_path, PATH=path, TRAINYARD_CACHE=f"{tmp_path}/cache")
    assert not done.stdout.startswith("path")


@pytest.mark.parametrize(
    ("keep", "backend"), [("", "file://{root}/.trainyard/state?metadata=skip"), ("1", "s3://mine")]
)
def test_env_file_keeps_the_users_backend_only_on_request(tmp_path: Path, keep: str, backend: str) -> None:
    root = tmp_path / "with a space"
    root.mkdir()
    script = 'make_state; echo stand-in >"$state/command-plugin"; write_env; source "$state/env.sh"; '
    script += 'echo "$PULUMI_BACKEND_URL"; stat -c %a "$state/passphrase"'
    done = shell(script, root, PULUMI_BACKEND_URL="s3://mine", TRAINYARD_USE_MY_PULUMI=keep)
    assert done.stdout.splitlines() == [backend.format(root=root), "600"], done.stderr


def test_the_page_on_own_repositories_lists_the_system_packages() -> None:
    listed = re.search(r"apt-get install ([^$]+?)\nyard", (ROOT / "docs" / "own-repository.md").read_text())
    assert listed
    assert listed[1].replace("\\", "").split() == shell('echo "${system_packages[@]}"').stdout.split()


def test_requirements_are_hashed_and_complete() -> None:
    assert "://" not in LOCK
    entries = re.split(r"\n(?=\S)", LOCK.strip())
    assert [entry.splitlines()[0] for entry in entries if "--hash=sha256:" not in entry] == []
    # Without this file, `pulumi up` in a fresh clone creates an empty virtual environment.
    assert "-r requirements.lock" in (ROOT / "requirements.txt").read_text().splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = project["project"]["dependencies"] + project["dependency-groups"]["dev"]
    names = {re.split(r"[=<>~ ]", want)[0].lower() for want in wanted if isinstance(want, str)}
    assert names - set(re.findall(r"(?m)^([a-z0-9-]+)==", LOCK)) == set()


@pytest.mark.skipif(not (ROOT / ".trainyard" / "env.sh").exists(), reason="needs a finished set-up (make setup)")
def test_second_set_up_changes_nothing(tmp_path: Path) -> None:
    """The copy shares the caches with this checkout, so its first run does not install anything either."""
    copy = tmp_path / "checkout"
    shutil.copytree(ROOT / "tools", copy / "tools")
    for name in ("requirements.lock", "pyproject.toml", ".gitignore"):
        shutil.copy(ROOT / name, copy)
    (copy / ".venv").symlink_to(ROOT / ".venv")
    (copy / "offline" / "bin").mkdir(parents=True)
    shutil.copy(ROOT / "offline" / "bin" / "pulumi-resource-command", copy / "offline" / "bin")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        git(copy, *words)
    first = subprocess.run(["tools/setup.sh"], cwd=copy, capture_output=True, text=True, check=True, timeout=120)
    passphrase = (copy / ".trainyard" / "passphrase").read_text()
    second = subprocess.run(["tools/setup.sh"], cwd=copy, capture_output=True, text=True, check=True, timeout=60)
    assert ": started" not in second.stdout, first.stdout + second.stdout
    assert (copy / ".trainyard" / "passphrase").read_text() == passphrase
    assert git(copy, "status", "--porcelain") in ("", "?? .venv"), ".gitignore does not match a symbolic link .venv"


_IN_A_CLONE = """
git init -q
root=$PWD; for part in common env; do source tools/setup/$part.sh; done
make_state; echo official >"$state/command-plugin"; write_env
. .trainyard/env.sh
pulumi install
cp stacks/Pulumi.local.yaml stacks/Pulumi.mine.yaml
git add -A
pulumi stack select --create mine >/dev/null
git add stacks/Pulumi.mine.yaml
for verb in init rm; do python -m tools.stack $verb local >/dev/null; done
pulumi stack output --json
pulumi stack rm --yes mine >/dev/null
git diff --stat
"""


@pytest.mark.engine
def test_removed_stacks_keep_their_files_and_the_selection(tmp_path: Path) -> None:
    assert PlainClone(tmp_path).run(_IN_A_CLONE) == "{}\n"


@pytest.mark.parametrize("hash_is_right", [True, False])
def test_official_cli_is_verified_before_use(hash_is_right: bool, tmp_path: Path, program: MakeProgram) -> None:
    put_pulumi(tmp_path / "made" / "pulumi", "3.259.0")
    subprocess.run(["tar", "-czf", tmp_path / "archive", "-C", tmp_path / "made", "pulumi"], check=True)
    # The last argument of curl is the output file.
    program("curl", f'cp {tmp_path}/archive "${{!#}}"')
    digest = hashlib.sha256((tmp_path / "archive").read_bytes()).hexdigest() if hash_is_right else "0" * 64
    done = shell(f"cache={tmp_path}/cache; pulumi_sha256_x64={digest} pulumi_sha256_arm64={digest}; install_official")
    installed = tmp_path / "cache" / "pulumi" / "3.259.0" / "bin" / "pulumi"
    assert (done.returncode == 0) == hash_is_right, done.stderr
    assert installed.exists() == hash_is_right
    if not hash_is_right:
        assert "SHA-256 differs" in done.stderr
        assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


def install_command(home: Path, target: Path) -> Path:
    """Install `target` as the pulumi-command plugin in a Pulumi home, as a link."""
    version = re.search(r"(?m)^pulumi-command==(\S+)", LOCK)
    assert version
    place = home / "plugins" / f"resource-command-v{version[1]}" / "pulumi-resource-command"
    place.parent.mkdir(parents=True)
    place.symlink_to(target)
    return place


def choose_plugin(root: Path, home: Path | None = None) -> tuple[str, Path]:
    """Return the choice of the set-up, and the program of the chosen plugin."""
    shutil.copy(ROOT / "requirements.lock", root)
    offline = "installer_answers() { return 1; }; make_state; choose_command_plugin; "
    given = {"PULUMI_HOME": str(home)} if home else {}
    done = shell(f'{offline} cat "$state/command-plugin"', root=root, user=None, **given)
    assert done.returncode == 0, done.stderr
    [program] = root.glob(".trainyard/pulumi-home/plugins/*/*")
    return done.stdout.strip(), program.resolve()


@pytest.mark.parametrize("chosen", [True, False])
def test_the_users_official_plugin_is_used(tmp_path: Path, chosen: bool) -> None:
    home = tmp_path / "chosen" if chosen else tmp_path / ".pulumi"
    program = install_command(home, put_pulumi(tmp_path / "download", "0").rename(tmp_path / "download" / "plugin"))
    choice, used = choose_plugin(tmp_path, home if chosen else None)
    assert re.fullmatch(r"official \d+\.\d+\.\d+", choice)
    assert used == program.resolve()


def test_a_link_to_the_replacement_is_not_official(tmp_path: Path) -> None:
    install_command(tmp_path / ".pulumi", ROOT / "offline" / "bin" / "pulumi-resource-command")
    assert choose_plugin(tmp_path) == ("stand-in", tmp_path / "offline" / "bin" / "pulumi-resource-command")


@pytest.mark.parametrize("plugin", ["command", "gcp"])
def test_official_tests_need_the_official_plugin(tmp_path: Path, program: MakeProgram, plugin: str) -> None:
    program("pulumi", "exit 1")
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run(
        [ROOT / "tools" / "official.sh", plugin], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert f"plugin install resource {plugin}" in done.stderr
    assert "Nothing was tested" in done.stderr


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with tools, and with an unused image, an image that a machine's disk uses, and a baked image."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("TRAINYARD_CACHE", str(cache))
    for name in ("0a", "0b", "trainyard-debian-13-0123456789abcdef"):
        (cache / "images" / name).mkdir(parents=True)
        (cache / "images" / name / "manifest.json").write_text("{}")
    (cache / "images" / "0a" / "gold.qcow2").write_bytes(b"x" * 300_000)
    (cache / "mypy").mkdir()
    (cache / "mypy" / "file").write_bytes(b"x" * 200_000)
    (cache / "notes.txt").write_text("not from this project")
    disk = tmp_path / "disk.qcow2"
    disk.touch()
    used = find_image("0b")
    assert used is not None
    hold_image(used, disk)
    return cache


def test_clean_deletes_the_cache_and_says_what(cache: Path) -> None:
    lines = list(clean(cache))
    assert sorted(path.name for path in cache.iterdir()) == ["images", "notes.txt"]
    assert sorted(path.name for path in (cache / "images").iterdir()) == ["0b", "trainyard-debian-13-0123456789abcdef"]
    assert [line.partition(" (")[0] for line in lines[:4]] == [
        f"deleted {cache / 'mypy'}",
        f"deleted {cache / 'images' / '0a'}",
        f"kept {cache / 'images' / '0b'}",
        f"kept {cache / 'images' / 'trainyard-debian-13-0123456789abcdef'}",
    ]
    assert lines[-1].startswith("deleted 0.5 MB in ")
    assert [line.partition(" in ")[0] for line in clean(cache / "absent")] == ["deleted 0.0 MB"]


def test_state_is_removed_after_the_last_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "state", lambda: tmp_path)
    for name in ("state/.pulumi/stacks/trainyard", "state/.pulumi/backups", "pulumi-home/logs", "pulumi-home/plugins"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "state/.pulumi/stacks/trainyard/local.json.bak").write_text("{}")
    other = tmp_path / "state/.pulumi/stacks/trainyard/azure-h100.json"
    other.write_text("{}")
    down.remove_empty_state()
    assert (tmp_path / "state/.pulumi/backups").exists()
    other.unlink()
    down.remove_empty_state()
    assert not (tmp_path / "state/.pulumi").exists()
    assert [path.name for path in (tmp_path / "pulumi-home").iterdir()] == ["plugins"]


def test_only_the_salt_is_removed_from_the_stack_file(tmp_path: Path) -> None:
    file = tmp_path / "Pulumi.local.yaml"
    file.write_text("encryptionsalt: v1:abc=\nconfig:\n  trainyard:cluster: {}\n")
    down.remove_salt(file)
    assert file.read_text() == "config:\n  trainyard:cluster: {}\n"


def resource(name: str, **more: Any) -> dict[str, Any]:
    return {"urn": f"urn:pulumi:s::trainyard::a$gcp:compute/disk:Disk::{name}", "type": "gcp:compute/disk:Disk", **more}


@pytest.fixture
def exported(tmp_path: Path, program: MakeProgram) -> Path:
    """The state file that a fake `pulumi stack export` prints."""
    program("pulumi", f'[ "$1 $2" = "stack export" ] && cat {tmp_path}/state')
    return tmp_path / "state"


def test_protected_resources_are_listed_with_both_fixes(exported: Path) -> None:
    with pytest.raises(StackError, match="the state cannot be read"):
        refuse_protected("opt", os.environ)
    resources = [resource("opt-head"), resource("opt-shared", protect=True), resource("opt-gpu-0", protect=False)]
    exported.write_text(json.dumps({"version": 3, "deployment": {"resources": resources}}))
    with pytest.raises(StackError) as refused:
        refuse_protected("opt", os.environ)
    message = str(refused.value)
    assert "stack 'opt' has protected data: opt-shared (gcp:compute/disk:Disk). Nothing was deleted." in message
    assert "--exclude-protected" in message
    assert "protect_storage to false in stacks/Pulumi.opt.yaml" in message


@pytest.mark.parametrize("deployment", [{}, {"resources": []}, {"resources": [resource("opt-head")]}, None])
def test_stack_without_protected_resources_is_accepted(exported: Path, deployment: Any) -> None:
    exported.write_text(json.dumps({"version": 3, "deployment": deployment}))
    refuse_protected("opt", os.environ)


@pytest.mark.engine
def test_a_rehearsal_prints_the_commands_that_delete_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rehearsal = stack.Stack("gcp-a2", simulated=True, home=tmp_path)
    assert rehearsal.up() == 0
    deletions = re.findall(r"`python -m tools\.stack (\w+) gcp-a2 --offline (\S+)`", capfd.readouterr().err)
    assert deletions == [("destroy", EXCLUDE), ("rm", "--force")]
    assert (tmp_path / "clouds" / "gcp-a2").exists()
    for verb, option in deletions:
        assert getattr(rehearsal, verb)([option]) == 0
    assert not (tmp_path / "clouds" / "gcp-a2").exists()


_PHASE = """
import os, signal, time
from pathlib import Path
try:
    Path("started").touch()
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(0.3)
    Path("ended").touch()
"""
_DEMO = "from tools.demo import Phases; Phases().run('a phase', 'phase'); print('not reached')"


def test_interrupted_demo_waits_for_its_phase(tmp_path: Path) -> None:
    (tmp_path / "phase.py").write_text(_PHASE)
    running = subprocess.Popen(
        [sys.executable, "-c", _DEMO],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not (tmp_path / "started").exists():
        assert running.poll() is None
    os.killpg(running.pid, signal.SIGINT)
    out, errors = running.communicate(timeout=30)
    assert (tmp_path / "ended").exists()
    assert "interrupted in a phase" in errors
    assert running.returncode == 128 + signal.SIGINT
    assert out == ""


def test_used_ports_stop_the_demo_before_the_set_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    computer = Computer(free_memory=lambda _: 1 << 20, used_ports=lambda _, ports: [22101] if 22101 in ports else [])
    monkeypatch.setattr(demo, "THIS_COMPUTER", computer)
    monkeypatch.setattr(sys, "argv", ["demo", "--check"])
    assert demo.main() == 1
    errors = capsys.readouterr().err
    assert errors.startswith("make demo: 1 problem in stacks/Pulumi.local.yaml; nothing was changed.\n")
    assert "stacks/Pulumi.local.yaml:cluster.platform.ssh_port_base: port 22101 on 127.0.0.1 is in use" in errors
    assert "Fix: write `ssh_port_base: 22400` there" in errors


def test_used_ports_stop_the_first_set_up_at_once(tmp_path: Path) -> None:
    (tmp_path / "stacks").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        stack = f"config:\n  trainyard:cluster:\n    platform:\n      ssh_port_base: {port - 1}\n"
        (tmp_path / "stacks" / "Pulumi.local.yaml").write_text(stack)
        done = shell("require_ports", tmp_path)
        assert done.returncode == 1
        assert re.search(rf"stacks/Pulumi.local.yaml: SSH ports .* are in use .*\b{port}\b.*Nothing was", done.stderr)
        assert re.search(r"Fix: write `ssh_port_base: \d+` under `platform:` in stacks/Pulumi.local.yaml", done.stderr)
        # A cluster of this checkout may use its own ports.
        (tmp_path / ".trainyard" / "run" / "local").mkdir(parents=True)
        assert shell("require_ports", tmp_path).returncode == 0
    assert f"base:={LocalSpec(provider='local').ssh_port_base}" in (ROOT / "tools/setup/system.sh").read_text()


def test_the_demo_checks_before_it_builds_the_image() -> None:
    setup = (ROOT / "tools/setup.sh").read_text()
    assert setup.index("require_ports") < setup.index("one_at_a_time")
    assert setup.index("tools.demo --check") < setup.index('start image "Golden image"')
    assert "tools/setup.sh --demo;" in (ROOT / "Makefile").read_text()
