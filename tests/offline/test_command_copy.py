"""CopyToRemote against a real sftp server."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from offline.values import ARCHIVE, ASSET, MARK, Properties, Value
from tests.offline.loopback_sshd import Sshd
from tests.offline.plugin import COPY, Plugin, hidden

Copy = Callable[[Value, str | Path], Properties]


def _file(path: Path | str, content: str = "1") -> Value:
    return {MARK: ASSET, "path": str(path), "hash": content}


def _folder(path: Path | str) -> Value:
    return {MARK: ARCHIVE, "path": str(path), "hash": "1"}


def _text(text: str) -> Value:
    return {MARK: ASSET, "text": text, "hash": text}


@pytest.fixture
def copy(plugin: Plugin, sshd: Sshd) -> Copy:
    """Copies a source to a path on the server, and returns the outputs."""

    def create(source: Value, target: str | Path) -> Properties:
        inputs: Properties = {
            "connection": hidden(sshd.connection()),
            "source": source,
            "remotePath": str(target),
        }
        _, outputs = plugin.create(COPY, inputs)
        assert outputs == inputs
        return outputs

    return create


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with a file, an empty folder and a file further down."""
    folder = tmp_path / "source"
    (folder / "sub" / "deep").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / "one").write_text("1")
    (folder / "sub" / "deep" / "two words").write_text("2")
    return folder


def _tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


_TREE = {"one", "empty", "sub", "sub/deep", "sub/deep/two words"}


def test_a_large_file_arrives_whole(copy: Copy, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(os.urandom(3_000_001))
    copy(_file(tmp_path / "file"), tmp_path / "new" / "folder" / "name")
    assert (tmp_path / "new" / "folder" / "name").read_bytes() == (tmp_path / "file").read_bytes()


def test_a_file_into_a_folder_keeps_its_name(copy: Copy, source: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    copy(_file(source / "one"), tmp_path / "there")
    assert _tree(tmp_path / "there") == {"one"}


def test_a_file_over_a_longer_one_leaves_nothing_of_it(copy: Copy, source: Path, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("much longer")
    copy(_file(source / "one"), tmp_path / "there")
    assert (tmp_path / "there").read_text() == "1"


def test_an_empty_file(copy: Copy, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    copy(_file(tmp_path / "file"), tmp_path / "there")
    assert (tmp_path / "there").read_bytes() == b""


def test_a_folder_arrives_under_its_name(copy: Copy, source: Path, tmp_path: Path) -> None:
    copy(_folder(source), tmp_path / "new" / "there")
    assert _tree(tmp_path / "new" / "there" / "source") == _TREE


def test_a_folder_with_a_slash_gives_its_contents(copy: Copy, source: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "kept").touch()
    copy(_folder(f"{source}/"), tmp_path / "there")
    assert _tree(tmp_path / "there") == _TREE | {"kept"}
    assert (tmp_path / "there" / "sub" / "deep" / "two words").read_text() == "2"


def test_a_text(copy: Copy, tmp_path: Path) -> None:
    copy(hidden(_text("words\n")), tmp_path / "new" / "there")
    assert (tmp_path / "new" / "there").read_text() == "words\n"


def test_what_cannot_be_copied_is_told(plugin: Plugin, copy: Copy, source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    assert "Fix: give a file's path" in plugin.failure(lambda: copy(_text("x"), tmp_path / "folder"))
    assert "exists but is not a folder" in plugin.failure(lambda: copy(_folder(source), tmp_path / "file"))
    assert "there is no" in plugin.failure(lambda: copy(_file(tmp_path / "missing"), tmp_path / "x"))
    message = plugin.failure(lambda: copy(_text("x"), "/proc/no/such"))
    assert "could not create remote folder /proc/no: No such file" in message


def test_only_changed_content_or_path_copies_again(plugin: Plugin, copy: Copy, source: Path, tmp_path: Path) -> None:
    target = tmp_path / "there"
    state = copy(_file(source / "one", "1"), target)
    target.write_text("untouched")
    plugin.update(COPY, state, {**state, "triggers": ["x"]})
    assert target.read_text() == "untouched"
    plugin.update(COPY, state, {**state, "source": _file(source / "one", "2")})
    assert target.read_text() == "1"
    plugin.update(COPY, state, {**state, "remotePath": str(tmp_path / "elsewhere")})
    assert (tmp_path / "elsewhere").read_text() == "1"


def test_preview_and_delete_touch_nothing(plugin: Plugin, sshd: Sshd, source: Path, tmp_path: Path) -> None:
    inputs: Properties = {
        "connection": hidden(sshd.connection()),
        "source": _file(source / "one"),
        "remotePath": str(tmp_path / "there"),
    }
    assert plugin.create(COPY, inputs, preview=True) == ("", inputs)
    plugin.delete(COPY, {**inputs, "remotePath": str(source / "one")})
    assert (source / "one").exists()
    assert not (tmp_path / "there").exists()
    assert sshd.logins == 0
