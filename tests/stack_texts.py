"""Hypothesis strategy for stack files: the project's stack files with random changes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

STACKS = sorted((Path(__file__).parents[1] / "stacks").glob("Pulumi.*.yaml"))
_TREES = [yaml.safe_load(file.read_text()) for file in STACKS]
_DUMPER: type[Any] = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_KEYS = sorted({key for tree in _TREES for key in str(tree).replace("'", " ").split() if key.isidentifier()})

_ODD_TEXTS = st.sampled_from(
    [
        *("", " ", "yes", "~", "null", "0x10", "1e9", ".inf", "12:30:45", "2026-02-30", "a: b", "- x", "{", "&a", "*a"),
        *("%TAG", "\u202e", "\u0000", "\ud7ff", "\U0001f600", "x" * 5000, "../../etc", "$(reboot)", "[key]", "?", "!x"),
        *("172.17.0.0/16", "10.77.0.1/20", "::1/64", "0.0.0.0/0", "azure", "gcp", "local", "hosts", "GPU", "<b>|`"),
    ]
)
_NUMBERS = st.sampled_from(
    [0, -1, 1, 2, 1.5, 2**31, 2**63, 10**400, -(10**30), float("nan"), float("inf"), -0.0, 1e308]
)
_LEAVES = st.none() | st.booleans() | _NUMBERS | _ODD_TEXTS | st.text(max_size=12) | st.binary(max_size=4) | st.dates()
_KEY = st.sampled_from(_KEYS) | _ODD_TEXTS | st.integers(-1, 9) | st.none() | st.booleans() | st.dates()
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(_KEY, inner, max_size=3) | st.sets(_ODD_TEXTS, max_size=2)
    ),
    max_leaves=6,
)

Draw = Callable[[st.SearchStrategy[Any]], Any]


@st.composite
def stack_bytes(draw: Draw) -> bytes:
    """Draw a stack file with up to four changes in its tree, up to two changes in its text, and a random encoding."""
    tree = copy.deepcopy(draw(st.sampled_from(_TREES)))
    for _ in range(draw(st.integers(0, 4))):
        _change_tree(draw, tree)
    text: str = yaml.dump(
        tree, Dumper=_DUMPER, sort_keys=False, allow_unicode=draw(st.booleans()), default_flow_style=draw(_STYLES)
    )
    for _ in range(draw(st.integers(0, 2))):
        text = draw(st.sampled_from(_TEXT_CHANGES))(draw, text)
    return bytes(draw(st.sampled_from(_ENCODINGS))(text))


_STYLES = st.sampled_from([False, None, True])


def _change_tree(draw: Draw, tree: Any) -> None:
    """Change a random node in the tree."""
    node, depth = tree, draw(st.integers(1, 6))
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node))) if isinstance(node, list) else []
        if not keys:
            return
        key = draw(st.sampled_from(keys))
        inner = node[key]
        depth -= 1
        if depth <= 0 or not isinstance(inner, dict | list) or not inner:
            break
        node = inner
    change = draw(st.sampled_from(["replace", "delete", "rename", "add", "wrap"]))
    if change == "delete":
        del node[key]
    elif change == "wrap":
        node[key] = [inner]
    elif change == "replace" or isinstance(node, list):
        node[key] = draw(_VALUES)
    elif change == "add":
        node[draw(_KEY)] = draw(_VALUES)
    else:
        node[draw(_KEY)] = node.pop(key)


def _at_a_line(insert: Callable[[str], str]) -> Callable[[Draw, str], str]:
    """Return a change that inserts text before a random line. `insert` returns the text for this line."""

    def change(draw: Draw, text: str) -> str:
        lines = text.splitlines(keepends=True)
        index = draw(st.integers(0, max(0, len(lines) - 1)))
        return "".join([*lines[:index], insert(lines[index] if lines else ""), *lines[index:]])

    return change


def _after_a_colon(draw: Draw, text: str) -> str:
    """Insert an anchor, an alias, a tag or an indicator before a value."""
    parts = text.split(": ")
    index = draw(st.integers(0, len(parts) - 1))
    marks = [
        "&a ",
        "*a ",
        "!!python/object:os.system ",
        "!!binary ",
        "!!set ",
        "!x ",
        "!!int ",
        "| ",
        "{<<: ",
        "&a [*a] #",
    ]
    return ": ".join([*parts[:index], draw(st.sampled_from(marks)) + parts[index], *parts[index + 1 :]])


def _cut(draw: Draw, text: str) -> str:
    length: int = draw(st.integers(0, len(text)))
    return text[:length]


def _deep(draw: Draw, text: str) -> str:
    depth: int = draw(st.sampled_from([50, 1500, 20_000]))
    opening, closing = draw(st.sampled_from([("[", "]"), ("{a: ", "}"), ("- ", ""), ("? ", "")]))
    return f"{text}deep: {opening * depth}x{closing * depth}\n"


_TEXT_CHANGES = [
    _at_a_line(lambda line: line),
    _at_a_line(lambda line: line.partition(":")[0] + ": 5\n"),
    _at_a_line(lambda line: "\t" + line),
    _at_a_line(lambda line: "---\n"),
    _at_a_line(lambda line: "%YAML 9.9\n"),
    _at_a_line(lambda line: " " * (len(line) - len(line.lstrip())) + "<<: {name: other, nodes: 5}\n"),
    _at_a_line(lambda line: " " * (len(line) - len(line.lstrip())) + "<<: [5, {a: b}]\n"),
    _after_a_colon,
    _cut,
    _deep,
    lambda draw, text: "\ufeff" + text,
    lambda draw, text: text.replace("\n", "\r\n"),
    lambda draw, text: text + draw(st.text(max_size=30)),
]
_ENCODINGS: list[Callable[[str], bytes]] = [
    *[lambda text: text.encode("utf-8", "surrogatepass")] * 12,
    lambda text: text.encode("utf-16", "surrogatepass"),
    lambda text: text.encode("latin-1", "replace").replace(b"e", b"\xe9", 1),
    lambda text: text.encode("utf-8", "surrogatepass") + b"\x00\xff",
]
