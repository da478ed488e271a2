"""Token files on real files: every cut gives the same tokens, bad lines are named, runs go on, damage is found."""

from __future__ import annotations

import array
import fcntl
import struct
import sys
from pathlib import Path

import pytest

from jobs.dataset.__main__ import parse, work
from jobs.dataset.errors import DatasetError
from jobs.dataset.lines import chunks, lines_of, text_of
from jobs.dataset.prepare import prepare
from jobs.dataset.tokenizers import tokenizer_named
from jobs.dataset.verify import verify
from jobs.workloads import train
from tests.jobs.dataset_samples import TEXTS, expected, lines, quiet, tokens_of, wish


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_bytes(lines(TEXTS * 5))
    return path


@pytest.mark.parametrize("cut", [1, 7, 33, 100, 10_000])
def test_every_cut_gives_each_line_once(cut: int, source: Path) -> None:
    size = source.stat().st_size
    found = [line for chunk in chunks([(str(source), size)], cut) for line in lines_of(chunk)]
    assert b"".join(found) == source.read_bytes()
    assert len(found) == 30


@pytest.mark.parametrize(("cut", "processes"), [(33, 2), (10_000, 1)])
def test_the_tokens_are_the_texts_bytes(cut: int, processes: int, source: Path, tmp_path: Path) -> None:
    name = tmp_path / "made" / "data.v1"
    facts = prepare(wish(source, name, chunk=cut, processes=processes), quiet)
    assert tokens_of(name) == expected(TEXTS * 5)
    assert (facts["documents"], facts["vocab"], facts["token_bytes"]) == (25, 257, 2)
    assert sorted(path.name for path in name.parent.iterdir()) == ["data.v1.bin", "data.v1.idx", "data.v1.json"]
    assert verify(name, full=True)["tokens"] == len(tokens_of(name))


def test_a_last_line_without_its_end_counts(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines(["one", "two"])[:-1])
    prepare(wish(tmp_path / "in.jsonl", tmp_path / "out"), quiet)
    assert tokens_of(tmp_path / "out") == expected(["one", "two"])


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    for name, text in (("b", "second"), ("a", "first")):
        (tmp_path / f"{name}.jsonl").write_bytes(lines([text]))
    prepare(wish(tmp_path, tmp_path / "out"), quiet)
    assert tokens_of(tmp_path / "out") == expected(["first", "second"])


def test_the_index_is_megatrons(source: Path, tmp_path: Path) -> None:
    """Read as megatron/core/datasets/indexed_dataset.py reads it, written down here anew."""
    name = tmp_path / "out"
    prepare(wish(source, name), quiet)
    raw, binary = (tmp_path / "out.idx").read_bytes(), (tmp_path / "out.bin").read_bytes()
    assert raw[:9] == b"MMIDIDX\x00\x00"
    assert struct.unpack("<Q", raw[9:17]) == (1,)
    assert raw[17] == 8  # DType.uint16
    sequences, documents = struct.unpack("<QQ", raw[18:34])
    assert (sequences, documents) == (25, 26)
    sizes = struct.unpack_from(f"<{sequences}i", raw, 34)
    pointers = struct.unpack_from(f"<{sequences}q", raw, 34 + 4 * sequences)
    assert struct.unpack_from(f"<{documents}q", raw, 34 + 12 * sequences) == tuple(range(26))
    assert len(raw) == 34 + 12 * sequences + 8 * documents
    texts = [text for text in TEXTS * 5 if text]
    for text, size, pointer in zip(texts, sizes, pointers, strict=True):
        assert struct.unpack_from(f"<{size}H", binary, pointer) == (*text.encode(), 256)


def test_the_trainer_reads_what_was_prepared(source: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed here; on the nodes it is")
    prepare(wish(source, tmp_path / "out"), quiet)
    options = train.parse(["--data", str(tmp_path / "out.bin")])
    data = train.Data(torch, options, train.PRESETS["tiny"])
    assert data.tokens is not None
    assert data.tokens.tolist() == expected(TEXTS * 5)
    assert data.batch(0, 4, 0, 4).shape == (4, 65)


def test_the_trainer_takes_the_file_for_what_it_is(tmp_path: Path) -> None:
    class Mapper:
        """Maps as torch.from_file does, by the type it is asked for."""

        int16, int32 = "H", "I"

        def from_file(self, name: str, *, shared: bool, size: int, dtype: str) -> array.array[int]:
            return array.array(dtype, Path(name).read_bytes())[:size]

    for vocab, width in ((512, 2), (70_000, 4)):
        facts = work(parse(["synth", str(tmp_path / str(vocab)), "--tokens", "5K", "--vocab", str(vocab)]))
        options = train.parse(["--data", str(tmp_path / f"{vocab}.bin"), "--token-bytes", str(facts["token_bytes"])])
        data = train.Data(Mapper(), options, train.PRESETS["tiny"])
        assert data.tokens is not None
        assert (facts["token_bytes"], len(data.tokens)) == (width, 5000)
        assert max(data.tokens) == vocab - 1


def test_bad_lines_are_named_and_nothing_is_written(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    bad = [b'{"text": 1}', b"[1]", b'{"text": "x"', b'{"text": "\\ud800"}', b'{"text": "\xff"}', b'{"other": "x"}']
    source.write_bytes(lines(["good"] * 10) + b"\n".join(bad) + b"\n\n" + lines(["good"]))
    name = tmp_path / "out"
    with pytest.raises(DatasetError) as caught:
        prepare(wish(source, name, chunk=60), quiet)
    said = str(caught.value)
    assert "6 bad lines, 0 allowed; nothing was written" in said
    reasons = ["has no text under 'text'", "is no JSON object", "is not JSON (", "holds half of a", "is not UTF-8"]
    for number, words in enumerate([*reasons, "has no text"], start=11):
        assert f"{source}:{number}: {words}" in said
    assert "--bad-lines 6" in said
    assert not list(tmp_path.glob("out.[bi]*"))
    facts = prepare(wish(source, name, chunk=60, bad_lines=6), quiet)
    assert (facts["left_out"], facts["documents"]) == (6, 11)


def test_the_lines_of_each_file_are_counted_from_one(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_bytes(lines(["good"] * 3) + b"bad\n" * 30)
    with pytest.raises(DatasetError) as caught:
        prepare(wish(tmp_path, tmp_path / "out", chunk=10_000), quiet)
    assert f"{tmp_path}/a.jsonl:4: is not JSON" in str(caught.value)
    assert "and 40 more" in str(caught.value)


def test_a_later_run_goes_on_and_a_changed_input_starts_anew(source: Path, tmp_path: Path) -> None:
    with source.open("ab") as file:
        file.write(b"bad\n")
    name = tmp_path / "out"
    with pytest.raises(DatasetError):
        prepare(wish(source, name), quiet)
    told: list[tuple[int, int]] = []
    with pytest.raises(DatasetError):
        prepare(wish(source, name), lambda done, total: told.append((done, total)))
    size = source.stat().st_size
    assert told == [(size, size)]
    (tmp_path / "out.parts" / "000002.json").unlink()
    told.clear()
    prepare(wish(source, name, bad_lines=1), lambda done, total: told.append((done, total)))
    assert told == [(size - 100, size), (size, size)]
    assert tokens_of(name) == expected(TEXTS * 5)
    source.write_bytes(lines(["other"]))
    with pytest.raises(DatasetError, match="made from something else"):
        prepare(wish(source, name), quiet)
    prepare(wish(source, name, force=True), quiet)
    assert tokens_of(name) == expected(["other"])


def test_parts_of_another_plan_are_not_used(source: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="has no text under 'other'"):
        prepare(wish(source, tmp_path / "out", key="other"), quiet)
    prepare(wish(source, tmp_path / "out"), quiet)
    assert tokens_of(tmp_path / "out") == expected(TEXTS * 5)


def test_what_is_made_is_not_made_again(source: Path, tmp_path: Path) -> None:
    first = prepare(wish(source, tmp_path / "out"), quiet)
    before = (tmp_path / "out.bin").stat().st_mtime_ns
    assert prepare(wish(source, tmp_path / "out", chunk=10_000), quiet) == first
    assert (tmp_path / "out.bin").stat().st_mtime_ns == before


def test_two_runs_do_not_share_their_parts(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out.parts").mkdir()
    with (tmp_path / "out.parts" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DatasetError, match="another run is at work"):
            prepare(wish(source, tmp_path / "out"), quiet)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("words", "there is no tokenizer 'words'"),
        ("tiktoken:", "there is no tokenizer"),
        ("tiktoken:gpt2", "tiktoken is not installed on"),
        ("tokenizers:x.json", "tokenizers is not installed on"),
    ],
)
def test_a_tokenizer_that_is_not_there_is_said(name: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("tiktoken", "tokenizers"):
        monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(DatasetError, match=said):
        tokenizer_named(name)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x1f\x8b123456", "gzip -dk"),
        (b"\x28\xb5\x2f\xfd1234", "zstd -dk"),
        (b"", "holds no text"),
        (None, "cannot be"),
    ],
)
def test_an_input_that_is_no_json_lines_is_said(content: bytes | None, said: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "in.jsonl").write_bytes(content)
    with pytest.raises(DatasetError, match=said):
        prepare(wish(tmp_path / "in.jsonl", tmp_path / "out"), quiet)
    assert not list(tmp_path.glob("out.[bi]*"))


def test_deep_nesting_is_a_bad_line_and_no_crash() -> None:
    assert text_of(b"[" * 200_000, "text")[1].startswith("is not JSON")
