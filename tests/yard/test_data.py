"""`yard data`: the files of a dataset, damage, and hosts, with a fake ssh that runs commands locally."""

from __future__ import annotations

import array
import json
import struct
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tests.yard.conftest import FakeStack, MakeProgram, Program, refused, yard
from yard.run import dataset
from yard.run.dataset import DatasetError, main, verify


def synth(name: Path, *options: str) -> None:
    assert main(["synth", str(name), *options]) == 0


def tokens_of(name: Path, kind: str = "H") -> list[int]:
    return array.array(kind, Path(f"{name}.bin").read_bytes()).tolist()


@pytest.fixture
def ssh(stack: FakeStack) -> Program:
    return stack.program("ssh", 'exec bash -c "${!#}"')


def test_a_seed_always_gives_the_same_bytes(tmp_path: Path) -> None:
    for name, seed in (("a", "3"), ("b", "3"), ("c", "4")):
        synth(tmp_path / name, "--tokens", "20K", "--seed", seed)
    first, again, other = (tokens_of(tmp_path / name) for name in "abc")
    assert first == again != other
    assert len(first) == 20_000
    follows = sum(after == (before + 1) % 511 for before, after in pairwise(first))
    assert follows > 0.99 * len(first)
    assert verify(tmp_path / "a", full=True)["vocab"] == 512
    synth(tmp_path / "wide", "--tokens", "5K", "--vocab", "70000")
    assert max(tokens_of(tmp_path / "wide", "I")) == 69_999


def test_the_index_has_the_format_of_megatron(tmp_path: Path) -> None:
    """Parse the index as megatron/core/datasets/indexed_dataset.py does."""
    synth(tmp_path / "out", "--tokens", "20K")
    raw, tokens = (tmp_path / "out.idx").read_bytes(), tokens_of(tmp_path / "out")
    assert raw[:9] == b"MMIDIDX\x00\x00"
    assert struct.unpack("<Q", raw[9:17]) == (1,)
    assert raw[17] == 8  # DType.uint16
    sequences, documents = struct.unpack("<QQ", raw[18:34])
    sizes = struct.unpack_from(f"<{sequences}i", raw, 34)
    pointers = struct.unpack_from(f"<{sequences}q", raw, 34 + 4 * sequences)
    assert struct.unpack_from(f"<{documents}q", raw, 34 + 12 * sequences) == tuple(range(sequences + 1))
    assert len(raw) == 34 + 12 * sequences + 8 * documents
    assert sum(sizes) == len(tokens)
    for size, pointer in zip(sizes, pointers, strict=True):
        assert tokens[pointer // 2 + size - 1] == 511, "each document ends with the last id"


def test_an_existing_dataset_is_kept_without_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    synth(tmp_path / "out", "--tokens", "5K")
    before = tokens_of(tmp_path / "out")
    assert main(["synth", str(tmp_path / "out"), "--seed", "9"]) == 1
    assert "use another name, or --force" in capsys.readouterr().err
    assert tokens_of(tmp_path / "out") == before
    synth(tmp_path / "out", "--tokens", "5K", "--seed", "9", "--force")
    assert tokens_of(tmp_path / "out") != before


Damage = Callable[[bytearray], object]
DOCUMENTS = 25
SIZES, POINTERS = 34, 34 + 4 * DOCUMENTS


@pytest.fixture
def made(tmp_path: Path) -> Path:
    synth(tmp_path / "out", "--tokens", "25K")
    assert verify(tmp_path / "out", full=False)["documents"] == DOCUMENTS
    return tmp_path / "out"


@pytest.mark.parametrize(
    ("suffix", "damage", "message"),
    [
        (".bin", lambda raw: raw.pop(), "bytes, but its index requires"),
        (".bin", lambda raw: raw.__setitem__(slice(0, 2), b"\x2c\x02"), "token 556, but its vocabulary has 512"),
        (".idx", lambda raw: raw.pop(), "is damaged"),
        (".idx", lambda raw: raw.__setitem__(0, 0), "is not an index of this format"),
        (".idx", lambda raw: raw.__delitem__(slice(20, None)), "is not an index of this format"),
        (".idx", lambda raw: raw.__setitem__(9, 2), "has version 2"),
        (".idx", lambda raw: raw.__setitem__(17, 7), "type 7"),
        (".idx", lambda raw: raw.__setitem__(POINTERS + 16, 1), "is damaged"),
        (".idx", lambda raw: raw.__setitem__(SIZES, raw[SIZES] ^ 1), "is damaged"),
        (".idx", lambda raw: raw.__setitem__(25, 0xFF), "is damaged"),
        (".json", lambda raw: raw.pop(0), "does not contain the size"),
    ],
)
def test_damage_is_detected(suffix: str, damage: Damage, message: str, made: Path) -> None:
    path = Path(f"{made}{suffix}")
    raw = bytearray(path.read_bytes())
    damage(raw)
    path.write_bytes(raw)
    with pytest.raises(DatasetError, match=message):
        verify(made, full=False)


@pytest.mark.parametrize("suffix", [".bin", ".idx", ".json"])
def test_only_the_vocabulary_is_optional(suffix: str, made: Path) -> None:
    Path(f"{made}{suffix}").unlink()
    if suffix == ".json":
        assert verify(made, full=False)["vocab"] is None
        return
    with pytest.raises(DatasetError, match="cannot be read"):
        verify(made, full=False)


def test_a_quick_check_reads_both_ends_of_a_file(tmp_path: Path) -> None:
    name = tmp_path / "large"
    synth(name, "--tokens", "3M")
    quick, full = verify(name, full=False), verify(name, full=True)
    assert quick["looked_at"] < full["looked_at"] == 3_000_000
    with (tmp_path / "large.bin").open("r+b") as file:
        file.seek(-2, 2)
        file.write(b"\xff\xff")
    with pytest.raises(DatasetError, match="contains token 65535"):
        verify(name, full=False)


@pytest.mark.parametrize(("limit", "name", "message"), [
    ("unlimited", "file/out", "Not a directory. Fix: "),
    ("100", "out", "free disk space or correct the permissions"),
])  # fmt: skip
def test_a_failed_write_is_reported_and_leaves_no_files(limit: str, name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    command = [sys.executable, dataset.__file__, "synth", str(tmp_path / name), "--tokens", "1M"]
    shell = ["bash", "-c", f'trap "" XFSZ; ulimit -f {limit}; exec "$@"', "-", *command]
    done = subprocess.run(shell, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert message in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_every_host_verifies_the_dataset(ssh: Program, tmp_path: Path) -> None:
    assert yard("data", "synth", str(tmp_path / "out"), "--tokens", "10K")[0] == 0
    assert all("yard-head" in call for call in ssh.calls)
    assert yard("data", "synth", "/dev/null/out")[0] == 1
    yard("data", "synth", "data/x", "--tokens", "x")  # a relative path is below the shared path
    assert "synth /shared/data/x " in ssh.calls[-1]
    code, out, _ = yard("data", "verify", str(tmp_path / "out"), "--json")
    answer = json.loads(out)
    assert (code, answer["whole"]) == (0, True)
    assert list(answer["hosts"]) == ["yard-head", "yard-gpu-0", "yard-gpu-1"]
    assert "yard-gpu-1: 10 documents, 10000 tokens" in yard("data", "verify", str(tmp_path / "out"), "--full")[1]


def test_hosts_with_other_or_missing_bytes_are_reported(ssh: Program, program: MakeProgram, tmp_path: Path) -> None:
    for name, seed in (("out", "1"), ("other", "2")):
        assert yard("data", "synth", str(tmp_path / name), "--tokens", "10K", "--seed", seed)[0] == 0
    elsewhere = 'l="${!#}" a=/out b=/NEW; [[ $* != *yard-gpu-1* ]] || l="${l//$a/$b}"; exec bash -c "$l"'
    program("ssh", elsewhere.replace("NEW", "other"))
    assert "the hosts read different bytes (yard-head " in refused("data", "verify", str(tmp_path / "out"))
    program("ssh", elsewhere.replace("NEW", "absent"))
    assert f"yard: yard-gpu-1: {tmp_path}/absent.idx cannot be read" in refused("data", "verify", str(tmp_path / "out"))
