"""The dataset package: chunks, tokens, bad lines, continued runs and tokenizers."""

from __future__ import annotations

import array
import fcntl
import struct
import sys
from pathlib import Path

import pytest

from tests.yard.data.dataset_samples import TEXTS, expected, lines, quiet, request, tokens_of
from yard.data.dataset.__main__ import parse, work
from yard.data.dataset.errors import DatasetError
from yard.data.dataset.lines import chunks, lines_of, text_of
from yard.data.dataset.prepare import prepare
from yard.data.dataset.tokenizers import tokenizer_named
from yard.data.dataset.verify import verify
from yard.workloads import train, train_files, train_model


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_bytes(lines(TEXTS * 5))
    return path


@pytest.mark.parametrize("cut", [1, 7, 33, 100, 10_000])
def test_chunks_of_any_size_contain_each_line_once(cut: int, source: Path) -> None:
    size = source.stat().st_size
    found = [line for chunk in chunks([(str(source), size)], cut) for line in lines_of(chunk)]
    assert b"".join(found) == source.read_bytes()
    assert len(found) == 30


@pytest.mark.parametrize(("cut", "processes"), [(33, 2), (10_000, 1)])
def test_the_bytes_tokenizer_writes_the_bytes_of_texts(cut: int, processes: int, source: Path, tmp_path: Path) -> None:
    name = tmp_path / "made" / "data.v1"
    facts = prepare(request(source, name, chunk=cut, processes=processes), quiet)
    assert tokens_of(name) == expected(TEXTS * 5)
    assert (facts["documents"], facts["vocab"], facts["token_bytes"]) == (25, 257, 2)
    assert sorted(path.name for path in name.parent.iterdir()) == ["data.v1.bin", "data.v1.idx", "data.v1.json"]
    assert verify(name, full=True)["tokens"] == len(tokens_of(name))


def test_a_last_line_without_newline_is_included(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines(["one", "two"])[:-1])
    prepare(request(tmp_path / "in.jsonl", tmp_path / "out"), quiet)
    assert tokens_of(tmp_path / "out") == expected(["one", "two"])


def test_files_of_a_folder_are_read_in_order_of_name(tmp_path: Path) -> None:
    for name, text in (("b", "second"), ("a", "first")):
        (tmp_path / f"{name}.jsonl").write_bytes(lines([text]))
    prepare(request(tmp_path, tmp_path / "out"), quiet)
    assert tokens_of(tmp_path / "out") == expected(["first", "second"])


def test_the_index_has_the_format_of_megatron(source: Path, tmp_path: Path) -> None:
    """Parse the index as megatron/core/datasets/indexed_dataset.py does."""
    name = tmp_path / "out"
    prepare(request(source, name), quiet)
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


def test_the_trainer_reads_a_prepared_dataset(source: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    prepare(request(source, tmp_path / "out"), quiet)
    options = train.parse(["--data", str(tmp_path / "out.bin")])
    data = train_files.Data(torch, options, train_model.PRESETS["tiny"])
    assert data.tokens is not None
    assert data.tokens.tolist() == expected(TEXTS * 5)
    assert data.batch(0, 4, 0, 4).shape == (4, 65)


def test_the_trainer_reads_both_token_widths(tmp_path: Path) -> None:
    class Mapper:
        """Replacement for torch in which `from_file` returns an array."""

        int16, int32 = "H", "I"

        def from_file(self, name: str, *, shared: bool, size: int, dtype: str) -> array.array[int]:
            return array.array(dtype, Path(name).read_bytes())[:size]

    for vocab, width in ((512, 2), (70_000, 4)):
        facts = work(parse(["synth", str(tmp_path / str(vocab)), "--tokens", "5K", "--vocab", str(vocab)]))
        options = train.parse(["--data", str(tmp_path / f"{vocab}.bin"), "--token-bytes", str(facts["token_bytes"])])
        data = train_files.Data(Mapper(), options, train_model.PRESETS["tiny"])
        assert data.tokens is not None
        assert (facts["token_bytes"], len(data.tokens)) == (width, 5000)
        assert max(data.tokens) == vocab - 1


def test_bad_lines_are_reported_and_nothing_is_written(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    bad = [b'{"text": 1}', b"[1]", b'{"text": "x"', b'{"text": "\\ud800"}', b'{"text": "\xff"}', b'{"other": "x"}']
    source.write_bytes(lines(["good"] * 10) + b"\n".join(bad) + b"\n\n" + lines(["good"]))
    name = tmp_path / "out"
    with pytest.raises(DatasetError) as caught:
        prepare(request(source, name, chunk=60), quiet)
    message = str(caught.value)
    assert "6 bad lines, 0 allowed; nothing was written" in message
    reasons = [
        "has no text with the key 'text'",
        "is not a JSON object",
        "is not JSON (",
        "contains an unpaired",
        "is not UTF-8",
    ]
    for number, words in enumerate([*reasons, "has no text"], start=11):
        assert f"{source}:{number}: {words}" in message
    assert "--bad-lines 6" in message
    assert not list(tmp_path.glob("out.[bi]*"))
    facts = prepare(request(source, name, chunk=60, bad_lines=6), quiet)
    assert (facts["left_out"], facts["documents"]) == (6, 11)


def test_line_numbers_are_per_file(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_bytes(lines(["good"] * 3) + b"bad\n" * 30)
    with pytest.raises(DatasetError) as caught:
        prepare(request(tmp_path, tmp_path / "out", chunk=10_000), quiet)
    assert f"{tmp_path}/a.jsonl:4: is not JSON" in str(caught.value)
    assert "and 40 more" in str(caught.value)


def test_a_run_continues_unless_the_input_changed(source: Path, tmp_path: Path) -> None:
    with source.open("ab") as file:
        file.write(b"bad\n")
    name = tmp_path / "out"
    with pytest.raises(DatasetError):
        prepare(request(source, name), quiet)
    progress: list[tuple[int, int]] = []
    with pytest.raises(DatasetError):
        prepare(request(source, name), lambda done, total: progress.append((done, total)))
    size = source.stat().st_size
    assert progress == [(size, size)]
    (tmp_path / "out.parts" / "000002.json").unlink()
    progress.clear()
    prepare(request(source, name, bad_lines=1), lambda done, total: progress.append((done, total)))
    assert progress == [(size - 100, size), (size, size)]
    assert tokens_of(name) == expected(TEXTS * 5)
    source.write_bytes(lines(["other"]))
    with pytest.raises(DatasetError, match="created from different input"):
        prepare(request(source, name), quiet)
    prepare(request(source, name, force=True), quiet)
    assert tokens_of(name) == expected(["other"])


def test_parts_with_other_options_are_not_reused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="has no text with the key 'other'"):
        prepare(request(source, tmp_path / "out", key="other"), quiet)
    prepare(request(source, tmp_path / "out"), quiet)
    assert tokens_of(tmp_path / "out") == expected(TEXTS * 5)


def test_an_existing_dataset_is_not_written_again(source: Path, tmp_path: Path) -> None:
    first = prepare(request(source, tmp_path / "out"), quiet)
    before = (tmp_path / "out.bin").stat().st_mtime_ns
    assert prepare(request(source, tmp_path / "out", chunk=10_000), quiet) == first
    assert (tmp_path / "out.bin").stat().st_mtime_ns == before


def test_concurrent_runs_of_a_dataset_are_refused(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out.parts").mkdir()
    with (tmp_path / "out.parts" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DatasetError, match="another run uses"):
            prepare(request(source, tmp_path / "out"), quiet)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("words", "the tokenizer 'words' is unknown"),
        ("tiktoken:", "is unknown"),
        ("tiktoken:gpt2", "tiktoken is not installed on"),
        ("tokenizers:x.json", "tokenizers is not installed on"),
    ],
)
def test_unknown_and_missing_tokenizers_are_reported(name: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("tiktoken", "tokenizers"):
        monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(DatasetError, match=message):
        tokenizer_named(name)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x1f\x8b123456", "gzip -dk"),
        (b"\x28\xb5\x2f\xfd1234", "zstd -dk"),
        (b"", "contains no text"),
        (None, "cannot be"),
    ],
)
def test_invalid_inputs_are_reported(content: bytes | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "in.jsonl").write_bytes(content)
    with pytest.raises(DatasetError, match=message):
        prepare(request(tmp_path / "in.jsonl", tmp_path / "out"), quiet)
    assert not list(tmp_path.glob("out.[bi]*"))


def test_a_deeply_nested_line_is_a_bad_line() -> None:
    assert text_of(b"[" * 200_000, "text")[1].startswith("is not JSON")
