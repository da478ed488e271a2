"""Reading stack files. Invalid files raise StackFileError and no other exception."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.plan.check import Level
from components.stackfile.read import CLUSTER_KEY, parse_config, parse_stack, read_stack
from trainyard.errors import StackFileError

GOOD = """\
config:
  trainyard:cluster:
    name: yard
    platform: {provider: local}
    head: {machine: vm-head}
    nodes: {gpu: {machine: vm-gpu2, count: 2}, more: {machine: vm-gpu2, count: 2}}
  gcp:project: example
encryptionsalt: v1:abc
"""

_WORDS = st.sampled_from(
    [
        "name",
        "platform",
        "provider",
        "local",
        "head",
        "machine",
        "vm-head",
        "nodes",
        "gpu",
        "count",
        "network",
        "cidr",
        "secure",
    ]
)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | _WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS | st.text(), inner, max_size=4),
    max_leaves=12,
)


def test_ignores_keys_of_other_projects() -> None:
    stack = parse_stack(GOOD, "stacks/Pulumi.good.yaml")
    assert stack.file == "stacks/Pulumi.good.yaml"
    assert list(stack.plan.groups) == ["gpu", "more"]
    assert stack.findings == ()


def test_accepts_a_stack_with_a_warning() -> None:
    stack = parse_stack(GOOD.replace("vm-head", "vm-gpu2"), "f")
    assert [(finding.check, finding.level) for finding in stack.findings] == [("head-gpus-idle", Level.WARNING)]


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(StackFileError, match=r"none\.yaml:file: No such file or directory\. Fix: "):
        read_stack(tmp_path / "none.yaml")


def test_binary_file(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(StackFileError, match=r"is not UTF-8 text\. Fix: "):
        read_stack(tmp_path / "binary.yaml")


@given(section=_VALUES)
@settings(max_examples=150, deadline=None)
def test_random_sections_raise_stack_file_errors(section: Any) -> None:
    with pytest.raises(StackFileError) as caught:
        parse_config({CLUSTER_KEY: section}, "f")
    assert caught.value.problems
    for line in str(caught.value).splitlines()[1:]:
        assert line.startswith("  f:cluster")


@given(text=st.text(max_size=200))
@settings(max_examples=150, deadline=None)
def test_random_text_raises_stack_file_errors(text: str) -> None:
    with pytest.raises(StackFileError):
        parse_stack(text, "f")


@pytest.mark.parametrize("key", ["null", "5", "true", "2026-01-01"])
def test_refuses_group_names_that_are_not_text(key: str) -> None:
    with pytest.raises(StackFileError, match=r"f:cluster\.nodes"):
        parse_stack(GOOD.replace("more:", f"{key}: null, more:"), "f")


@pytest.mark.parametrize(("key", "shown"), [("''", "''"), ('"a\\nb"', "a?b"), ('"\\u202e"', "?"), ("x" * 50, "x" * 40)])
def test_repeated_keys_are_printable(key: str, shown: str) -> None:
    with pytest.raises(StackFileError) as caught:
        parse_stack(f"{key}: 1\n{key}: 2\n{GOOD}", "f")
    assert str(caught.value).splitlines()[1] == f"  f:{shown}: is repeated in line 2. Fix: keep one of them."
