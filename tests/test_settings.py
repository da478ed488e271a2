"""The way through Pulumi's configuration gives the same spec and the same problems as the file itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulumi
import pytest
import yaml
from pulumi.runtime.config import set_all_config
from pulumi.runtime.mocks import MockCallArgs, MockResourceArgs, Mocks, set_mocks
from pulumi.runtime.settings import ROOT

from components.errors import StackFileError
from components.settings import load_settings
from components.stackfile import parse_config, read_stack

STACK = Path(__file__).parent.parent / "stacks" / "Pulumi.local.yaml"
BAD = Path(__file__).parent / "bad_stacks"
# One of each way to be wrong that survives Pulumi's own reading of the file.
THROUGH_PULUMI = ["everything-at-once", "cluster-text", "cluster-key-missing", "stray-key", "count-beyond-the-block"]


class NoResources(Mocks):
    """Settings must be read without making or asking for anything."""

    def new_resource(self, args: MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        raise AssertionError(f"{args.typ} was made")

    def call(self, args: MockCallArgs) -> tuple[dict[Any, Any], list[tuple[str, str]] | None]:
        raise AssertionError(f"{args.token} was called")


@pytest.fixture(autouse=True)
def _stack() -> Iterator[None]:
    # With a root there already, none is made, whose tasks nobody would wait for: settings make no resource.
    ROOT.set(object())  # type: ignore[arg-type]
    set_mocks(NoResources(), project="trainyard", stack="test")
    yield
    ROOT.set(None)
    set_all_config({}, [])


def configure(config: dict[str, Any], secret: list[str] | None = None) -> None:
    """Set configuration as the engine hands it over: sections as JSON, the rest as text."""
    set_all_config(
        {key: value if isinstance(value, str) else json.dumps(value) for key, value in config.items()}, secret or []
    )


def test_the_local_stack() -> None:
    configure(yaml.safe_load(STACK.read_text())["config"])
    settings, read = load_settings(), read_stack(STACK)
    assert settings.spec == read.spec
    assert settings.plan == read.plan
    assert settings.file == "stacks/Pulumi.test.yaml"


@pytest.mark.parametrize("name", THROUGH_PULUMI)
def test_problems_end_the_run_in_the_same_words(name: str) -> None:
    config = yaml.safe_load((BAD / f"{name}.yaml").read_text())["config"]
    configure(config)
    with pytest.raises(StackFileError) as direct:
        parse_config(config, (), "stacks/Pulumi.test.yaml")
    with pytest.raises(pulumi.RunError) as through:
        load_settings()
    assert str(through.value) == str(direct.value)


def test_an_encrypted_section_is_refused() -> None:
    configure(yaml.safe_load(STACK.read_text())["config"], secret=["trainyard:cluster"])
    with pytest.raises(pulumi.RunError, match="must not hold a secret"):
        load_settings()


def test_a_warning_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", told.append)
    config = yaml.safe_load(STACK.read_text())["config"]
    config["trainyard:cluster"]["head"]["machine"] = "vm-gpu2"
    configure(config)
    load_settings()
    assert len(told) == 1
    assert told[0].startswith("stacks/Pulumi.test.yaml:cluster.head.machine: ")
