"""The directory that is sent with a job, the recorded git state, and `yard sync` with rsync and sshd on loopback."""

from __future__ import annotations

import getpass
import io
import json
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.offline.loopback_sshd import new_server, running, sshd_binary
from tests.yard.conftest import FakeStack, git, printed, refused, yard
from trainyard.errors import JobFileError, SyncError
from trainyard.outputs import Cluster, dumped
from yard.job.loader import load_job
from yard.run import query
from yard.run.submit import pack
from yard.tree.files import MANIFEST, MARKER, collect, holds_private_key, looks_secret, select_files
from yard.tree.snapshot import Snapshot, take_snapshot
from yard.tree.sync import source_name


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with an ignored file, a secret, a program, a link and a large file."""
    folder = tmp_path / "project"
    (folder / "deep").mkdir(parents=True)
    for name, text in ((".gitignore", "*.log\n"), ("train.py", "1\n"), ("x.log", "\n"), (".env", "T=1\n")):
        (folder / name).write_text(text)
    (folder / "deep" / "go.sh").write_text("#!/bin/sh\n")
    (folder / "deep" / "go.sh").chmod(0o775)
    (folder / "link").symlink_to("train.py")
    os.link(folder / "train.py", folder / "same.py")
    git(folder, "init", "-q")
    return folder


def test_ignored_files_and_secrets_stay_here(project: Path) -> None:
    tree = collect("train.py", project)
    assert tree.names == (".gitignore", "deep/go.sh", "link", "same.py", "train.py")
    assert tree.left_out == (".env",)
    assert collect("x.log", project, ["x.log"]).names[-1] == "x.log"


def test_archive_keeps_links_and_programs_private(project: Path) -> None:
    data = pack("run", {"job.sh": "\n"}, collect("train.py", project))
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        modes = {entry.name: (entry.mode, entry.issym(), entry.uid, entry.uname) for entry in archive}
        same = archive.extractfile("run/code/same.py")
        assert same is not None
        assert same.read() == b"1\n"
    assert modes["run/code/deep/go.sh"] == (0o700, False, 0, "")
    assert modes["run/code/train.py"] == (0o600, False, 0, "")
    assert modes["run/code/link"][1]
    (project / "empty").mkdir()
    with tarfile.open(fileobj=io.BytesIO(pack("run", {}, collect("job", project / "empty")))) as archive:
        assert [(entry.name, entry.isdir()) for entry in archive] == [("run/code", True)]


@pytest.mark.parametrize(("limit", "words"), [("MOST_FILES", "has 5 files"), ("MOST_MIB", "its largest files: ")])
def test_large_directory_is_refused(limit: str, words: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"yard.tree.files.{limit}", 0)
    with pytest.raises(JobFileError, match=words) as caught:
        collect("train.py", project)
    assert ".gitignore" in str(caught.value)


def test_file_that_disappears_stops_the_submission(project: Path) -> None:
    tree = collect("train.py", project)
    (project / "train.py").unlink()
    with pytest.raises(SyncError, match="nothing was submitted"):
        pack("run", {}, tree)


@pytest.mark.parametrize(
    "lines",
    ["code: nowhere\nscript: train.py", "code: ..\nrun: ls", "code: .\nscript: nowhere.py", "code: [a]\nrun: ls"],
)
def test_wrong_directory_is_refused(lines: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    (project / "job.yaml").write_text(f"name: fine\n{lines}\n")
    with pytest.raises(JobFileError) as caught:
        load_job("job.yaml", {}, {}, [])
    assert [problem.path for problem in caught.value.problems] == ["script" if "nowhere.py" in lines else "code"]


def test_job_file_can_name_a_directory(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "job.yaml").write_text("name: fine\ncode: .\nscript: train.py\nlauncher: torchrun\n")
    job = load_job(str(project / "job.yaml"), {}, {}, [])
    assert (job.code, job.spec.script) == (project, "train.py")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a commit, a changed file, a changed secret, and an untracked file."""
    folder = tmp_path / "project"
    (folder / "sub").mkdir(parents=True)
    git(folder, "init", "-q")
    for name in ("train.py", ".env", "sub/other.py"):
        (folder / name).write_text("before\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    (folder / "train.py").write_text("after\n")
    (folder / ".env").write_text("TOKEN=hf_secret\n")
    (folder / "new.py").write_text("TOKEN=hf_other\n")
    return folder


def snapshot_of(folder: Path) -> Snapshot:
    found = take_snapshot(folder)
    assert found is not None
    return found


def test_snapshot_has_the_commit_and_the_changes(repository: Path) -> None:
    found = snapshot_of(repository / "sub")
    assert found.commit == git(repository, "rev-parse", "HEAD")
    assert found.title == f"{found.commit[:12]} with changes"
    assert (found.untracked, found.left_out) == (("new.py",), (".env",))
    assert json.loads(found.files()["snapshot.json"])["untracked"] == ["new.py"]
    assert "hf_" not in "".join(found.files().values()), "a snapshot contains no secrets"
    git(repository, "checkout", "-q", "HEAD", "--", "train.py")
    subprocess.run(["git", "-C", str(repository), "apply"], input=found.diff, text=True, check=True)
    assert (repository / "train.py").read_text() == "after\n"


def test_long_diff_ends_after_a_line(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("yard.tree.snapshot.MOST_BYTES", 2048)
    (repository / "train.py").write_text("a line\n" * 9999)
    found = snapshot_of(repository)
    assert (found.complete, found.diff[-8:]) == (False, "+a line\n")
    assert len(found.diff) <= 2048
    assert "larger than 2 KiB" in capsys.readouterr().err


def test_unchanged_tree_has_no_diff(repository: Path) -> None:
    git(repository, "stash", "-qu")
    found = snapshot_of(repository)
    assert list(found.files()) == ["snapshot.json"]
    assert found.title == found.commit[:12]


def test_folder_without_a_commit_has_no_snapshot(tmp_path: Path) -> None:
    assert take_snapshot(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert take_snapshot(tmp_path) is None


def test_configured_diff_program_does_not_run(repository: Path) -> None:
    git(repository, "config", "diff.external", "touch ran; false")
    assert "+after" in snapshot_of(repository).diff
    assert not (repository / "ran").exists()


def real(test: Callable[..., None]) -> Any:
    """Mark a test that needs rsync and sshd."""
    missing = not (sshd_binary() and shutil.which("rsync"))
    skip = pytest.mark.skipif(missing, reason="needs rsync and sshd: apt install rsync openssh-server")
    return pytest.mark.engine(skip(test))


def sync(*words: str | Path) -> tuple[int, str, str]:
    return yard("sync", *map(str, words))


@pytest.fixture
def head(stack: FakeStack, local: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with running(new_server(tmp_path_factory.mktemp("sshd"))) as server:
        outputs: dict[str, Any] = dumped(local)
        outputs["head"] |= {"port": server.port, "user": getpass.getuser(), "host_key": server.host_key}
        stack.export({"cluster": outputs, "user_private_key": server.private_key})
        yield


@pytest.fixture
def tree(tmp_path: Path) -> Path:
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
        git(tree, "init", "-q")
        (tree / ".git" / "info" / "exclude").write_text("train.py\n")
        git(tree, "add", "keep.log")
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
    assert "train.py" in sync(tree, dest, "--dry-run")[1].splitlines()
    assert not dest.exists()
    code, _, err = sync(tree, dest)
    assert code == 0, err
    assert names(dest) == sorted([*SENT, MANIFEST, MARKER])
    assert (dest / MARKER).read_text() == f"{source_name(tree)}\n"
    assert (dest / "deep/er/a b.txt").read_text() == "words\n"
    assert "yard: .env was not sent, because it looks like a secret" in err
    (tree / "train.py").write_text("print(22)\n")
    answer = json.loads(sync(tree, dest, "--json")[1])
    assert answer["changed"] == ["train.py"]
    assert answer["left_out"] == [".env", "keys/id_ed25519"]


@real
def test_delete_removes_only_files_that_a_sync_sent(head: None, tree: Path, tmp_path: Path) -> None:
    dest = tmp_path / "copy"
    assert sync(tree, dest)[0] == 0
    (dest / "runs").mkdir()
    (dest / "runs" / "checkpoint").write_text("precious")
    (dest / "deep" / "result.txt").write_text("precious")
    (tree / "train.py").unlink()
    (tree / "deep/er/a b.txt").unlink()
    assert sync(tree, dest)[0] == 0
    assert (dest / "train.py").exists()
    answer = json.loads(sync(tree, dest, "--delete", "--dry-run", "--json")[1])
    assert answer["deleted"] == ["deep/er/a b.txt", "train.py"]
    assert (dest / "train.py").exists()
    code, out, _ = sync(tree, dest, "--delete")
    assert code == 0
    assert "deleted train.py" in out
    left = set(SENT) - {"train.py", "deep/er/a b.txt"}
    assert names(dest) == sorted([*left, MANIFEST, MARKER, "runs/checkpoint", "deep/result.txt"])
    assert not (dest / "deep" / "er").exists()


@pytest.fixture
def twin(tmp_path: Path) -> Path:
    """Another user's directory with the same name."""
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
    assert sync(tree, dest)[0] == 0
    code, _, err = sync(twin, dest, *more)
    assert (code, err.partition(":")[0]) == (1, "yard")
    assert f"{dest} contains a copy of {source_name(tree)}, not of {source_name(twin)}: nothing was sent" in err
    assert "--take-over" in err
    assert (dest / "train.py").read_text() == "print(1)\n"
    assert sync(tree, dest)[0] == 0


@real
def test_a_copy_can_be_taken_over(head: None, tree: Path, twin: Path, tmp_path: Path) -> None:
    dest = tmp_path / "copy"
    assert sync(tree, dest)[0] == 0
    code, _, err = sync(twin, dest, "--take-over", "--delete")
    assert code == 0, err
    assert names(dest) == sorted(["train.py", MANIFEST, MARKER])
    assert (dest / "train.py").read_text() == "print('other')\n"
    assert sync(twin, dest)[0] == 0
    assert sync(tree, dest)[0] == 1


@real
def test_a_folder_with_files_of_others_is_refused(head: None, tree: Path, tmp_path: Path) -> None:
    """An example is /shared/jobs, the default destination for a directory `jobs`."""
    dest = tmp_path / "jobs"
    dest.mkdir()
    (dest / "train.py").write_text("precious")
    code, _, err = sync(tree, dest)
    assert code == 1
    assert "contains files that `yard sync` did not send" in err
    assert (dest / "train.py").read_text() == "precious"
    assert names(dest) == ["train.py"]
    code, _, err = sync(tree, dest / "train.py" / "copy")
    assert (code, "Not a directory" in err) == (1, True)


@pytest.fixture
def run_folder(head: None, stack: FakeStack, tmp_path: Path) -> Path:
    """The run folder of job 7, on a cluster without a scheduler. The shared folder is in tmp_path."""
    exported = json.loads((stack.root / "outputs.json").read_text())
    exported["cluster"] |= {"scheduler": "none", "shared_path": f"{tmp_path}/shared"}
    stack.export(exported)
    folder = tmp_path / "shared" / "jobs" / "a-20261124-000000-abcd"
    (folder / "out dir").mkdir(parents=True)
    (folder / "out dir" / "a[1] $x.pt").write_text("weights")
    (folder / "out dir" / "a1 $x.pt").write_text("others")
    (folder / "latest").symlink_to("out dir/a[1] $x.pt")
    (folder / "secret").symlink_to("/etc/passwd")
    state = {**dict.fromkeys(query.FIELDS, ""), "id": 7, "user": getpass.getuser(), "state": "COMPLETED", "nodes": 1}
    ended = {"restarts": 0, "exit_code": 0, "run_dir": str(folder), "started": 1, "ended": time.time()}
    (folder / "state.json").write_text(json.dumps({**state, **ended, "runner": None, "submitted": 1}))
    (folder.parent / ".ids").mkdir()
    (folder.parent / ".ids" / "7").symlink_to(folder)
    return folder


@real
def test_files_and_folders_are_copied_in_both_directions(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "my 'copies'"
    here.mkdir()
    monkeypatch.chdir(here)
    odd = "out dir/a[1] $x.pt"
    printed("cp", f"7:{odd}", ".")
    printed("cp", "last:latest", "renamed.pt")
    printed("cp", "last:out dir", "folder")
    assert json.loads(printed("wait", "last", "--json").splitlines()[-1])["id"] == 7
    answer = json.loads(printed("cp", "7:", ".", "--json"))
    assert answer == {"version": 1, "source": "7:", "target": f"{here}/{run_folder.name}"}
    assert (here / "a[1] $x.pt").read_text() == (here / "renamed.pt").read_text() == "weights"
    assert names(here / "folder") == ["a1 $x.pt", "a[1] $x.pt"]
    assert not (here / run_folder.name / "secret").is_symlink(), "a link to a file outside the folder is not copied"
    (here / "-b*").write_text("new")
    printed("cp", "./-b*", "last:out dir")
    printed("cp", "./-b*", "last:out dir/a[2]")
    printed("cp", "folder", "last:")
    printed("cp", "folder", f"cluster:{tmp_path}/shared/b?")
    assert (run_folder / "out dir" / "-b*").read_text() == (run_folder / "out dir" / "a[2]").read_text() == "new"
    assert names(run_folder / "folder") == names(tmp_path / "shared" / "b?") == ["a1 $x.pt", "a[1] $x.pt"]


@real
def test_a_copy_replaces_different_files_only_on_request(run_folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "a.pt"
    target.write_text("older work")
    source = "7:out dir/a[1] $x.pt"
    assert "different files exist: a[1] $x.pt; nothing was copied" in refused("cp", source, str(target))
    assert target.read_text() == "older work"
    printed("cp", source, str(target), "--force")
    printed("cp", source, str(target))
    assert target.read_text() == "weights"
    target.write_text("other work")
    assert "different files exist" in refused("cp", str(target), source)
    assert (run_folder / "out dir" / "a[1] $x.pt").read_text() == "weights"


WRONG_COPIES = [
    ("cluster:etc", ".", "cluster:/PATH"),
    ("7:none", ".", "/none does not exist on the cluster"),
    ("cluster:/none", ".", "/none does not exist on the cluster"),
    ("8:x", ".", "job 8 does not exist"),
    ("none", "7:", "none does not exist on this computer"),
    ("train.py", "7:none/x", "none does not exist"),
    ("7:latest", "none/x", "none does not exist"),
    ("train.py", "7:x/out", "x/out/train.py is a folder, and"),
    ("a", "b", "exactly one of SOURCE and DEST must be on the cluster"),
    ("7:a", "cluster:/b", "exactly one of SOURCE and DEST must be on the cluster"),
]


@real
def test_a_wrong_copy_is_refused(run_folder: Path, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)
    (run_folder / "x" / "out" / "train.py").mkdir(parents=True)
    before = names(tree)
    for source, dest, words in WRONG_COPIES:
        assert words in refused("cp", source, dest), (source, dest)
    assert names(tree) == before


@real
def test_an_interrupted_sync_continues(head: None, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dest = tmp_path / "copy"
    with monkeypatch.context() as patch:
        patch.setattr("yard.tree.sync._write_manifest", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        sync(tree, dest)
    assert not (dest / MANIFEST).exists()
    code, _, err = sync(tree, dest)
    assert code == 0, err
    assert (dest / MANIFEST).exists()


def test_a_missing_tool_is_reported(tree: Path, stack: FakeStack, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = stack.program("ssh", "exit 0")
    stack.program("git", f'exec {shutil.which("git")} "$@"')
    for tool in ("bash", "cat", "wc"):
        (ssh.folder / tool).symlink_to(shutil.which(tool) or "")
    monkeypatch.setenv("PATH", str(ssh.folder))
    code, _, err = sync(tree, "/x")
    assert (code, err.strip()) == (1, "yard: rsync is missing on this machine; install it (`sudo apt install rsync`)")
    (ssh.folder / "git").unlink()
    assert "git is missing on this machine" in sync(tree, "/x")[2]
    assert "is not a directory" in sync(tree / "absent")[2]
