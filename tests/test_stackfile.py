"""Reading stack files: what is accepted, and that nothing but a StackFileError ever comes out of a bad one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.checks import Level
from components.errors import StackFileError
from components.stackfile import CLUSTER_KEY, parse_config, parse_stack, read_stack

GOOD = """\
config:
  trainyard:cluster:
    name: yard
    platform: {provider: local}
    head: {machine: vm-head}
    nodes: {gpu: &gpu {machine: vm-gpu2, count: 2}, more: *gpu}
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


def test_other_keys_of_the_file_are_not_ours() -> None:
    stack = parse_stack(GOOD, "stacks/Pulumi.good.yaml")
    assert stack.file == "stacks/Pulumi.good.yaml"
    assert stack.plan.groups == ("gpu", "more")
    assert stack.remarks == ()


def test_a_warning_does_not_stop_anything() -> None:
    stack = parse_stack(GOOD.replace("vm-head", "vm-gpu2"), "f")
    assert [(remark.check, remark.level) for remark in stack.remarks] == [("head-gpus-idle", Level.WARNING)]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StackFileError, match=r"none\.yaml:file: No such file or directory\. Fix: "):
        read_stack(tmp_path / "none.yaml")


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(StackFileError, match=r"is not UTF-8 text\. Fix: "):
        read_stack(tmp_path / "binary.yaml")


@given(section=_VALUES)
@settings(max_examples=150, deadline=None)
def test_any_section_is_either_a_stack_or_a_list_of_problems(section: Any) -> None:
    with pytest.raises(StackFileError) as caught:
        parse_config({CLUSTER_KEY: section}, (), "f")
    assert caught.value.problems
    for line in str(caught.value).splitlines()[1:]:
        assert line.startswith("  f:cluster")


@given(text=st.text(max_size=200))
@settings(max_examples=150, deadline=None)
def test_any_text_is_refused_in_words(text: str) -> None:
    with pytest.raises(StackFileError):
        parse_stack(text, "f")


@pytest.mark.parametrize("key", ["null", "5", "true", "2026-01-01"])
def test_a_group_whose_name_is_no_text_is_refused_in_words(key: str) -> None:
    with pytest.raises(StackFileError, match=r"f:cluster\.nodes"):
        parse_stack(GOOD.replace("more: *gpu", f"{key}: null"), "f")


@pytest.mark.parametrize(("key", "shown"), [("''", "''"), ('"a\\nb"', "a?b"), ('"\\u202e"', "?"), ("x" * 50, "x" * 40)])
def test_a_repeated_key_is_shown_in_one_printable_line(key: str, shown: str) -> None:
    with pytest.raises(StackFileError) as caught:
        parse_stack(f"{key}: 1\n{key}: 2\n{GOOD}", "f")
    assert str(caught.value).splitlines()[1] == f"  f:{shown}: stands twice, again in line 2. Fix: keep one of them."
