"""A stack read from Pulumi's configuration has the same plan and the same problems as one read from the stack file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pulumi
import pytest
import yaml
from pulumi.runtime import set_all_config
from pulumi.runtime.mocks import set_mocks
from pulumi.runtime.settings import ROOT

from components.stackfile.read import parse_config, parse_stack, read_stack
from components.stackfile.settings import load_settings
from tests.components.platforms.recording import Recorder
from tests.components.stackfile.test_stackfile import BAD_STACKS
from tests.conftest import ROOT as CHECKOUT
from trainyard.errors import StackFileError
from trainyard.machines import ACCEPT, BAKE, BUILD, END_JOBS, KEEP

STACK = CHECKOUT / "stacks" / "Pulumi.local.yaml"
ACCEPTED_BY_PULUMI = (
    "everything-at-once",
    "cluster-text",
    "cluster-key-missing",
    "stray-key",
    "count-beyond-the-block",
)
"""One stack file for each kind of error that Pulumi itself does not report."""

Configure = Callable[..., None]


def local_config() -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(STACK.read_text())["config"]
    return config


def refuse(args: object) -> NoReturn:
    raise AssertionError(f"{args} was created or called")


@pytest.fixture(autouse=True)
def _stack() -> Iterator[None]:
    # The SDK does not create a root resource if one exists, so no unfinished tasks remain.
    ROOT.set(object())  # type: ignore[arg-type]
    set_mocks(Recorder(refuse, refuse), project="trainyard", stack="test")
    yield
    ROOT.set(None)
    set_all_config({}, [])


@pytest.fixture
def configure(monkeypatch: pytest.MonkeyPatch) -> Configure:
    """Set Pulumi's configuration as the engine does: sections as JSON, other values as text."""

    def configured(config: dict[str, Any], secret: list[str] | None = None) -> None:
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in config.items()}
        monkeypatch.setenv("PULUMI_CONFIG", json.dumps(texts))
        set_all_config(texts, secret or [])

    return configured


@pytest.mark.parametrize("name", ACCEPTED_BY_PULUMI)
def test_reports_the_same_problems_as_the_file(configure: Configure, name: str) -> None:
    config = yaml.safe_load(BAD_STACKS[name])["config"]
    configure(config)
    with pytest.raises(StackFileError) as direct:
        parse_config(config, "stacks/Pulumi.test.yaml")
    with pytest.raises(pulumi.RunError) as through:
        load_settings()
    assert str(through.value) == str(direct.value)


def test_refuses_an_encrypted_section(configure: Configure) -> None:
    configure(local_config(), secret=["trainyard:cluster"])
    with pytest.raises(pulumi.RunError, match="must not contain a secret"):
        load_settings()


def test_logs_warnings(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", warnings.append)
    config = local_config()
    config["trainyard:cluster"]["head"]["machine"] = "vm-gpu2"
    configure(config)
    load_settings()
    assert len(warnings) == 1
    assert warnings[0].startswith("stacks/Pulumi.test.yaml:cluster.head.machine: ")


def test_reads_what_one_run_permits(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    config = local_config()
    configure(config)
    assert load_settings().plan == read_stack(STACK).plan
    assert not load_settings().end_jobs | load_settings().accepted_host_keys
    configure({**config, END_JOBS: "7,9_2", ACCEPT: "SHA256:a"})
    assert load_settings().end_jobs == {"7", "9_2"}
    assert load_settings().accepted_host_keys == {"SHA256:a"}
    # An image's stack has no stack file to which a warning could refer.
    warnings: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", warnings.append)
    config["trainyard:cluster"]["head"]["machine"] = "vm-gpu2"
    for phase, builds in ((BUILD, True), (KEEP, False)):
        configure({**config, BAKE: phase})
        assert (load_settings().bakes, load_settings().builds) == (True, builds)
    assert warnings == []


def test_a_stack_file_may_contain_what_one_run_permits() -> None:
    text = yaml.safe_dump({"config": {**local_config(), END_JOBS: 7, ACCEPT: "SHA256:a"}})
    assert parse_stack(text, "test").plan == read_stack(STACK).plan
