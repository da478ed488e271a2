"""Property values, and differences between them."""

from __future__ import annotations

import pytest

from offline.values import ASSET, MARK, UNKNOWN, Change, Properties, changes, from_struct, reveal, secret, to_struct
from tests.offline.plugin import hidden


def test_properties_can_be_sent_and_received() -> None:
    properties: Properties = {
        "text": "a",
        "number": 1.5,
        "yes": True,
        "list": ["a", [1.0], {"b": None}],
        "hidden": hidden({"a": "b"}),
    }
    assert from_struct(to_struct(properties)) == properties


def test_a_secret_is_marked_once() -> None:
    assert secret(secret("a")) == hidden("a")


def test_reveal_removes_marks_at_any_depth() -> None:
    assert reveal(hidden({"a": [hidden("b")], "c": hidden(hidden(1.0))})) == {"a": ["b"], "c": 1.0}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"a": "x"}, {"a": "x"}, {}),
        ({"a": "x"}, {"a": "y"}, {"a": "UPDATE"}),
        ({}, {"a": "y"}, {"a": "ADD"}),
        ({"a": "x"}, {}, {"a": "DELETE"}),
        ({"a": ["x"]}, {"a": ["x", "y"]}, {"a[1]": "ADD"}),
        ({"a": {"b": "x", "c d": "x"}}, {"a": {"b": "y"}}, {"a.b": "UPDATE", 'a["c d"]': "DELETE"}),
        ({"a": hidden({"b": "x"})}, {"a": hidden({"b": "y"})}, {"a": "UPDATE"}),
        ({"a": "x"}, {"a": hidden("x")}, {"a": "UPDATE"}),
        ({"a": "x"}, {"a": UNKNOWN}, {"a": "UPDATE"}),
        ({"a": "x"}, {"a": "x", "__defaults": [], "version": "1"}, {}),
        (
            {"a": {MARK: ASSET, "hash": "1", "path": "./x"}},
            {"a": {MARK: ASSET, "hash": "1", "path": "/moved/x"}},
            {},
        ),
        (
            {"a": {MARK: ASSET, "hash": "1", "path": "x"}},
            {"a": {MARK: ASSET, "hash": "2", "path": "x"}},
            {"a": "UPDATE"},
        ),
    ],
)
def test_changes(old: Properties, new: Properties, expected: dict[str, Change]) -> None:
    assert changes(old, new) == expected
