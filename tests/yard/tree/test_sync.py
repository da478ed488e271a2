"""`yard sync` with the real rsync, ssh and sshd on loopback."""

from __future__ import annotations

import getpass
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.offline.loopback_sshd import new_server, running, sshd_binary
from tests.yard.conftest import FakeStack, MakeProgram
from trainyard.outputs import Cluster, dumped
from yard.commands.cli import app
from yard.tree.files import MANIFEST, MARKER, holds_private_key, looks_secret, select_files
from yard.tree.sync import source_name

pytestmark = pytest.mark.engine

real = pytest.mark.skipif(
    not (sshd_binary() and shutil.which("rsync")), reason="needs rsync and sshd: apt install rsync openssh-server"
)


def yard(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["sync", *words])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def head(stack: FakeStack, local_outputs: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A head that runs on this machine."""
    with running(new_server(tmp_path_factory.mktemp("sshd"))) as server:
        outputs: dict[str, Any] = dumped(local_outputs)
        outputs["head"] |= {"port": server.port, "user": getpass.getuser(), "host_key": server.host_key}
        stack.export({"cluster": outputs, "user_private_key": server.private_key})
        yield


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository that contains all kinds of files."""
    folder = tmp_path / "my work"
    files = {
        ".gitignore": "*.log\n/runs/\n!keep.log\n",
        "train.py": "print(1)\n",
        "deep/er/a b.txt": "words\n",
        "keep.log": "kept\n",
        "noise.log": "noise\n",
        "runs/x": "run\n",
        "deep/.gitignore": "*.tmp\n",
        "deep/x.tmp": "tmp\n",
        ".env": "TOKEN=1\n",
        "conf/.env.example": "TOKEN=\n",
        "keys/id_ed25519": "secret\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


SENT = sorted([
    ".gitignore", "train.py", "deep/er/a b.txt", "keep.log", "deep/.gitignore", "conf/.env.example",
])  # fmt: skip


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


@pytest.mark.parametrize("tracked", [True, False], ids=["repository", "plain folder"])
def test_ignored_files_and_secrets_are_not_sent(tracked: bool, tree: Path) -> None:
    if tracked:
        subprocess.run(["git", "init", "-q", tree], check=True)
        (tree / ".git" / "info" / "exclude").write_text("train.py\n")
        subprocess.run(["git", "-C", tree, "add", "keep.log"], check=True)
        (tree / "keep.log").unlink()
    found = select_files(tree, with_secrets=False)
    gone = {"train.py", "keep.log"} if tracked else set()
    assert list(found.files) == sorted(set(SENT) - gone)
    assert sorted(found.secrets) == [".env", "keys/id_ed25519"]
    assert {".env", "keys/id_ed25519"} < set(select_files(tree, with_secrets=True).files)


@pytest.mark.parametrize(
    ("name", "secret"),
    [(".env", True), ("a/.env.prod", True), (".env.example", False), ("x.pem", True), ("environment.py", False),
     ("id_rsa.pub", False), ("id_rsa", True), ("train.py", False)],
)  # fmt: skip
def test_secrets_are_known_by_name(name: str, secret: bool) -> None:
    assert looks_secret(name) is secret


def test_private_keys_are_known_by_content(tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "mine"], check=True)
    key = (tmp_path / "mine").read_text()
    contents = {"key": key, "outputs.json": json.dumps({"user_private_key": key}), "crlf": key.replace("\n", "\r\n")}
    for name, text in {**contents, "source.py": f'HEADER = "{key.splitlines()[0]}"\n', "empty": ""}.items():
        (tmp_path / name).write_text(text)
        assert holds_private_key(tmp_path / name) is (name in contents), name
    assert holds_private_key(tmp_path / "absent") is False
    assert set(select_files(tmp_path, with_secrets=False).secrets) == {"mine", *contents}


@real
def test_a_directory_arrives_and_stays_current(head: None, tree: Path, tmp_path: Path) -> None:
    dest = tmp_path / "the copy"
    code, _, err = yard(str(tree), str(dest))
    assert code == 0, err
    assert names(dest) == sorted([*SENT, MANIFEST, MARKER])
    assert (dest / MARKER).read_text() == f"{source_name(tree)}\n"
    assert (dest / "deep/er/a b.txt").read_text() == "words\n"
    assert "yard: .env was not sent, because it looks like a secret" in err
    (tree / "train.py").write_text("print(22)\n")
    answer = json.loads(yard(str(tree), str(dest), "--json")[1])
    assert answer["changed"] == ["train.py"]
    assert answer["left_out"] == [".env", "keys/id_ed25519"]


@real
def test_delete_removes_only_files_that_a_sync_sent(head: None, tree: Path, tmp_path: Path) -> None:
    dest = tmp_path / "copy"
    assert yard(str(tree), str(dest))[0] == 0
    (dest / "runs").mkdir()
    (dest / "runs" / "checkpoint").write_text("precious")
    (dest / "deep" / "result.txt").write_text("precious")
    (tree / "train.py").unlink()
    (tree / "deep/er/a b.txt").unlink()
    assert yard(str(tree), str(dest))[0] == 0
    assert (dest / "train.py").exists()
    answer = json.loads(yard(str(tree), str(dest), "--delete", "--dry-run", "--json")[1])
    assert answer["deleted"] == ["deep/er/a b.txt", "train.py"]
    assert (dest / "train.py").exists()
    code, out, _ = yard(str(tree), str(dest), "--delete")
    assert code == 0
    assert "deleted train.py" in out
    left = set(SENT) - {"train.py", "deep/er/a b.txt"}
    assert names(dest) == sorted([*left, MANIFEST, MARKER, "runs/checkpoint", "deep/result.txt"])
    assert not (dest / "deep" / "er").exists()


@real
def test_a_dry_run_changes_nothing(head: None, tree: Path, tmp_path: Path) -> None:
    dest = tmp_path / "copy"
    code, out, err = yard(str(tree), str(dest), "--dry-run")
    assert code == 0, err
    assert "train.py" in out.splitlines()
    assert not dest.exists()


@pytest.fixture
def twin(tmp_path: Path) -> Path:
    """A directory with the same name that belongs to another user."""
    folder = tmp_path / "other" / "my work"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text("print('other')\n")
    return folder


@real
@pytest.mark.parametrize("more", [(), ("--dry-run",), ("--delete",)], ids=["sync", "dry run", "delete"])
def test_another_directory_does_not_overwrite_a_copy(
    more: tuple[str, ...], head: None, tree: Path, twin: Path, tmp_path: Path
) -> None:
    dest = tmp_path / "copy"
    assert yard(str(tree), str(dest))[0] == 0
    code, _, err = yard(str(twin), str(dest), *more)
    assert (code, err.partition(":")[0]) == (1, "yard")
    assert f"{dest} contains a copy of {source_name(tree)}, not of {source_name(twin)}: nothing was sent" in err
    assert "--take-over" in err
    assert (dest / "train.py").read_text() == "print(1)\n"
    assert yard(str(tree), str(dest))[0] == 0


@real
def test_a_copy_can_be_taken_over(head: None, tree: Path, twin: Path, tmp_path: Path) -> None:
    dest = tmp_path / "copy"
    assert yard(str(tree), str(dest))[0] == 0
    code, _, err = yard(str(twin), str(dest), "--take-over", "--delete")
    assert code == 0, err
    assert names(dest) == sorted(["train.py", MANIFEST, MARKER])
    assert (dest / "train.py").read_text() == "print('other')\n"
    assert yard(str(twin), str(dest))[0] == 0
    assert yard(str(tree), str(dest))[0] == 1


@real
def test_a_folder_with_files_of_others_is_refused(head: None, tree: Path, tmp_path: Path) -> None:
    """An example is /shared/jobs, the default destination for a directory `jobs`."""
    dest = tmp_path / "jobs"
    dest.mkdir()
    (dest / "train.py").write_text("precious")
    code, _, err = yard(str(tree), str(dest))
    assert code == 1
    assert "contains files that `yard sync` did not send" in err
    assert (dest / "train.py").read_text() == "precious"
    assert names(dest) == ["train.py"]


@real
def test_an_interrupted_sync_continues(head: None, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dest = tmp_path / "copy"
    with monkeypatch.context() as patch:
        patch.setattr("yard.tree.sync._write_manifest", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        yard(str(tree), str(dest))
    assert not (dest / MANIFEST).exists()
    code, _, err = yard(str(tree), str(dest))
    assert code == 0, err
    assert (dest / MANIFEST).exists()


@real
def test_a_copy_that_cannot_be_written_is_reported(head: None, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = yard(str(tree), str(tmp_path / "file" / "copy"))
    assert code == 1
    assert "Not a directory" in err


def test_a_missing_tool_is_reported(
    tree: Path, stack: FakeStack, program: MakeProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = program("ssh", "exit 0")
    program("git", f'exec {shutil.which("git")} "$@"')
    for tool in ("bash", "cat", "wc"):
        (ssh.folder / tool).symlink_to(shutil.which(tool) or "")
    monkeypatch.setenv("PATH", str(ssh.folder))
    code, _, err = yard(str(tree), "/x")
    assert (code, err.strip()) == (1, "yard: rsync is missing on this machine; install it (`sudo apt install rsync`)")
    (ssh.folder / "git").unlink()
    assert "git is missing on this machine" in yard(str(tree), "/x")[2]


def test_a_source_that_is_not_a_directory_is_reported(stack: FakeStack, tmp_path: Path) -> None:
    assert "is not a directory" in yard(str(tmp_path / "absent"))[2]
