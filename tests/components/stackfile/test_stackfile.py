"""Stack files: the project's own are valid, and each invalid file is refused with all of its problems.

A random file results in a plan or a list of problems, but never in a traceback. The JSON Schema accepts the same files.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_args, get_origin

import pulumi
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pulumi.runtime import set_all_config
from pulumi.runtime import settings as pulumi_settings
from pulumi.runtime.mocks import set_mocks
from pydantic import BaseModel, Field, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typer.testing import CliRunner

from components.catalog import images
from components.plan.check import Computer, Level
from components.platforms import PLATFORMS
from components.platforms.registry import platform_model
from components.spec.cluster import ClusterSpec, NetworkSpec
from components.spec.explain import dotted, explain
from components.spec.model import Model, PlatformSpec
from components.stackfile.read import CLUSTER_KEY, cluster_spec, parse_config, parse_stack, read_stack
from components.stackfile.schema import stack_schema
from components.stackfile.settings import load_settings
from tests.components.platforms.recording import Recorder, stack_text
from tests.conftest import ROOT
from tests.stack_texts import STACKS, stack_bytes
from trainyard.errors import Problem, StackFileError
from trainyard.machines import ACCEPT, BAKE, BUILD, END_JOBS, KEEP
from trainyard.strict_yaml import MAX_CHARACTERS, MAX_LEVELS, YamlError, load_own, load_strict
from yard.commands.cli import app
from yard.preview.describe import describe

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
MINIMAL: dict[str, Any] = yaml.safe_load(GOOD)["config"]["trainyard:cluster"]
COMPUTER = Computer(free_memory=lambda plan: 24 * 1024, used_ports=lambda plan, ports: ())
_PARTS = re.split(r"(?m)^=== (\S+)\n", (ROOT / "tests" / "bad_stacks.txt").read_text())
BAD_STACKS = dict(zip(_PARTS[1::2], _PARTS[2::2], strict=True))
"""Invalid stack files by name. Each begins with its problems: `# expect: <path> | <part of the message>`."""
_MARK = "# expect: "
PLANTED = "hunter2"
"""A value in the files that could be a secret. Messages must not contain it."""
RUNTIMES = {"baremetal-h100": "none", "gcp-a2": "docker", "lambda-a6000": "none", "local": "none"}
"""Container runtimes other than enroot. Only gcp-a2 sets the key."""
PLATFORM_MODELS: list[type[PlatformSpec]] = [
    model for provider in PLATFORMS if (model := platform_model({"provider": provider})) is not None
]


@pytest.mark.parametrize("name", BAD_STACKS)
def test_bad_stack_is_refused(name: str) -> None:
    lines = (line.removeprefix(_MARK) for line in BAD_STACKS[name].splitlines() if line.startswith(_MARK))
    expected = [(path, words) for path, _, words in (line.partition(" | ") for line in lines)]
    assert expected
    assert all(words for _, words in expected)
    with pytest.raises(StackFileError) as caught:
        parse_stack(BAD_STACKS[name], "stacks/Pulumi.bad.yaml", COMPUTER)
    problems = caught.value.problems
    assert sorted(problem.path for problem in problems) == sorted(path for path, _ in expected)
    for path, words in expected:
        found = [problem.line("f") for problem in problems if problem.path == path]
        assert any(words in line for line in found), f"'{words}' is not in {found}"
    assert PLANTED not in str(caught.value)
    for line in str(caught.value).splitlines()[1:]:
        assert re.fullmatch(r"  stacks/Pulumi\.bad\.yaml:.*: .*\. Fix: .*", line)


@pytest.mark.parametrize("file", STACKS, ids=lambda file: file.stem)
def test_stack_is_valid_without_warnings(file: Path) -> None:
    stack, text = read_stack(file), file.read_text()
    # Users must replace the example network in some stack files.
    assert {finding.check for finding in stack.findings if finding.level is not Level.INFO} <= {"ssh-example"}
    assert "encryptionsalt" not in text
    assert "--preserve-config" in text
    assert "secure:" not in text
    assert text.startswith("# yaml-language-server: $schema=schema.json\n")
    assert schema_errors(text) == []
    assert stack.plan.containers == RUNTIMES.get(file.stem.removeprefix("Pulumi."), "enroot")


def test_each_platform_has_a_stack() -> None:
    assert {read_stack(file).plan.provider for file in STACKS} == set(PLATFORMS)
    assert set(STACKS) == set((ROOT / "stacks").glob("*.yaml")), "Pulumi finds only stacks/Pulumi.<stack>.yaml"


@pytest.mark.parametrize(("stack", "runtime"), [("azure-a100", "none"), ("local", "enroot")])
def test_stack_file_can_set_another_container_runtime(stack: str, runtime: str) -> None:
    assert parse_stack(stack_text(stack, containers=runtime), "test").plan.containers == runtime


def test_ignores_keys_of_other_projects() -> None:
    stack = parse_stack(GOOD, "stacks/Pulumi.good.yaml")
    assert (stack.file, list(stack.plan.groups), stack.findings) == ("stacks/Pulumi.good.yaml", ["gpu", "more"], ())


@pytest.mark.parametrize(
    ("content", "rule"), [(None, "No such file or directory"), (b"\xff\xfe\x00", "is not UTF-8 text")]
)
def test_refuses_missing_and_binary_files(tmp_path: Path, content: bytes | None, rule: str) -> None:
    if content is not None:
        (tmp_path / "x.yaml").write_bytes(content)
    with pytest.raises(StackFileError, match=rf"x\.yaml:file: {rule}\. Fix: "):
        read_stack(tmp_path / "x.yaml")


@pytest.mark.parametrize("key", ["null", "5", "true", "2026-01-01"])
def test_refuses_group_names_that_are_not_text(key: str) -> None:
    with pytest.raises(StackFileError, match=r"f:cluster\.nodes"):
        parse_stack(GOOD.replace("more:", f"{key}: null, more:"), "f")


@pytest.mark.parametrize(("key", "shown"), [("''", "''"), ('"a\\nb"', "a?b"), ('"\\u202e"', "?"), ("x" * 50, "x" * 40)])
def test_repeated_keys_are_printable(key: str, shown: str) -> None:
    with pytest.raises(StackFileError) as caught:
        parse_stack(f"{key}: 1\n{key}: 2\n{GOOD}", "f")
    assert str(caught.value).splitlines()[1] == f"  f:{shown}: is repeated in line 2. Fix: keep one of them."


def test_spec_has_defaults_round_trips_and_is_frozen() -> None:
    spec = cluster_spec(MINIMAL)
    assert (spec.scheduler, str(spec.network.cidr), spec.storage.shared.kind) == ("slurm", "10.77.0.0/20", "head_nfs")
    assert cluster_spec(spec.model_dump(mode="json")) == spec
    with pytest.raises(ValidationError, match="frozen"):
        spec.name = "other"


@pytest.mark.parametrize("cidr", ["10.0.0.0/12", "172.16.0.0/12", "192.168.4.0/24", "10.77.0.0/20"])
def test_accepts_private_networks(cidr: str) -> None:
    assert str(NetworkSpec.model_validate({"cidr": cidr}).cidr) == cidr


def fields(model: type[BaseModel], path: str) -> Iterator[tuple[str, FieldInfo]]:
    """Yield all fields of a model and of its sections with their dotted paths."""
    for name, info in model.model_fields.items():
        yield f"{path}.{name}", info
        annotation = info.annotation
        if get_origin(annotation) is dict:
            annotation = FieldInfo.from_annotation(get_args(annotation)[1]).annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from fields(annotation, f"{path}.{name}")


@pytest.mark.parametrize("model", [ClusterSpec, *PLATFORM_MODELS])
def test_each_field_has_an_example(model: type[BaseModel]) -> None:
    for name, info in fields(model, model.__name__):
        assert info.examples or info.default is not PydanticUndefined or get_args(info.annotation), name


@pytest.mark.parametrize("model", PLATFORM_MODELS)
def test_images_of_platforms_are_in_the_catalog(model: type[PlatformSpec]) -> None:
    choices = get_args(model.model_fields["image"].annotation)
    assert choices
    assert set(choices) <= set(images())


class Odd(Model):
    """A section with limits, and with types of errors that explain.py does not handle."""

    ratio: float = 0.5
    word: str = "x"
    count: Annotated[int, Field(ge=1, le=8, examples=[2])] = 1
    gib: Annotated[float, Field(ge=0.5, le=64, examples=[16])] = 1
    usd: Annotated[float | None, Field(gt=0, le=100, examples=[80])] = None

    @field_validator("word")
    @classmethod
    def _refuse(cls, value: str) -> str:
        raise ValueError("the word is wrong")


_USD = "usd: must be a number greater than 0 and at most 100. Fix: "


@pytest.mark.parametrize(
    ("section", "rule"),
    [
        ({"word": "hunter2"}, "word: the word is wrong. Fix: write something like x."),
        (
            {"ratio": "hunter2"},
            "ratio: Input should be a valid number, unable to parse string as a number. Fix: write something like 0.5.",
        ),
        ({"count": 9}, "count: must be a whole number from 1 to 8. Fix: use a number in this range, for example 2."),
        ({"gib": 65}, "gib: must be a number from 0.5 to 64. Fix: use a number in this range, for example 16."),
        ({"usd": 101}, f"{_USD}use a number in this range, for "),
        ({"usd": 0}, _USD),
        ({"usd": None, "gib": []}, "gib: must be a number from 0.5 to 64. Fix: "),
    ],
)
def test_messages_state_limits_but_no_values(section: Any, rule: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Odd.model_validate(section)
    [problem] = explain(caught.value, Odd, "odd", {})
    assert problem.line("f").startswith(f"f:odd.{rule}")
    assert "hunter2" not in problem.line("f")


def test_dotted_path_is_printable() -> None:
    assert dotted("cluster", ("nodes", "a\nb\x1b", "[key]")) == "cluster.nodes.a?b?"
    assert len(dotted("cluster", ("x" * 500,))) < 60


VALIDATOR = Draft202012Validator(stack_schema())


def schema_errors(text: str) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(load_own(text))]


def test_committed_schema_is_current() -> None:
    printed = CliRunner().invoke(app, ["schema"]).stdout
    current = json.loads((ROOT / "stacks" / "schema.json").read_text()) == json.loads(printed)
    assert current, "schema.json is outdated; run: python -m yard schema >stacks/schema.json"
    Draft202012Validator.check_schema(stack_schema())


@pytest.mark.parametrize("stack", [file.stem.removeprefix("Pulumi.") for file in STACKS])
@pytest.mark.parametrize(
    "edits",
    [
        {"nam": "x"},
        {"name": "Upper"},
        {"platform": {"provider": "azur"}},
        {"platform": {"provider": 1}},
        {"platform": {}},
        {"platform__regio": "eastus"},
        {"nodes": {}},
        {"nodes__gpu__count": 0},
        {"nodes__gpu__count": "2"},
        {"nodes__gpu__machine": "no-such-machine"},
        {"head__machine": "no-such-machine"},
        {"nodes__GPU": {"machine": "vm-gpu2", "count": 1}},
        {"storage__shared__kind": "floppy"},
        {"limits__max_usd_per_hour": -1},
    ],
    ids=lambda edits: next(iter(edits)),
)
def test_refuses_invalid_stacks(stack: str, edits: dict[str, Any]) -> None:
    assert schema_errors(stack_text(stack, **edits)) != []


@pytest.mark.parametrize(
    "text", ["{}", "config: {}", "config: {cluster: {}}", "config: {'trainyard:clutser': {}}", "[]"]
)
def test_refuses_files_without_cluster(text: str) -> None:
    assert schema_errors(text) != []


def test_allows_other_keys_of_pulumi() -> None:
    others = "config:\n  gcp:project: mine\n  trainyard:end_jobs: 7,9\n"
    text = stack_text("gcp-a2").replace("config:\n", others) + "encryptionsalt: v1:x\n"
    assert schema_errors(text) == []


def test_each_key_has_a_description() -> None:
    definitions = stack_schema()["$defs"]
    undescribed = [
        f"{name}.{key}"
        for name, model in definitions.items()
        for key, field in model["properties"].items()
        if not field.keys() & {"description", "$ref", "const"}
    ]
    assert undescribed == [], "add a docstring or a description to the field"
    assert {f"{prefix}Spec" for prefix in PLATFORMS.values()} <= set(definitions)
    assert "PlatformSpec" not in definitions
    assert CLUSTER_KEY in stack_schema()["properties"]["config"]["required"]


_FEW = settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
_MAX_LENGTH = 2000
"""Maximum length of a problem message in characters."""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "Pulumi.x.yaml"


def check_stack_file(file: Path, content: bytes) -> None:
    """Assert that the content results in a plan or in readable problems."""
    file.write_bytes(content)
    problems: tuple[Problem, ...] = ()
    try:
        assert read_stack(file).plan.workers
        assert describe("x", file).plan is not None
    except StackFileError as error:
        problems = error.problems
        assert str(error).count("\n") == len(problems) > 0  # noqa: PT017  (both results are valid)
    for problem in problems:
        line = problem.line(str(file))
        assert line.startswith(f"{file}:{problem.path}: ")
        assert all((problem.path, problem.rule, problem.fix))
        assert line.isprintable(), line
        assert len(line) < _MAX_LENGTH


@given(content=stack_bytes() | st.binary(max_size=300) | st.text(max_size=200).map(str.encode))
@_FEW
def test_random_and_changed_stack_files(file: Path, content: bytes) -> None:
    check_stack_file(file, content)


@pytest.mark.engine
@pytest.mark.full
@given(content=stack_bytes() | st.binary(max_size=300))
@settings(_FEW, max_examples=11_000)
def test_eleven_thousand_stack_files(file: Path, content: bytes) -> None:
    check_stack_file(file, content)


LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: " + "{a: " * 20_000, "nested deeper"),
        ("a: " + "[" * 100_000, "nested deeper"),
        ("- " * 20_000 + "x", "nested deeper"),
        (LAUGHS, "alias"),
        ("a: &a {k: x}\nb: {<<: *a}\n", "alias"),
        ("a: &a [*a]\n", "alias"),
        ("x" * (MAX_CHARACTERS + 1), "longer than"),
    ],
    ids=["mappings", "lists", "blocks", "laughs", "merge key", "recursive", "size"],
)
def test_text_beyond_a_limit_is_refused_within_half_a_second(text: str, reason: str) -> None:
    began = time.process_time()
    with pytest.raises(YamlError, match=reason) as caught:
        load_strict(text)
    assert caught.value.line >= 1
    assert time.process_time() - began < 0.5


def test_text_at_the_limits_is_accepted() -> None:
    deep = "[" * MAX_LEVELS + "]" * MAX_LEVELS
    assert load_strict(deep).repeated == ()
    assert load_strict("x" * MAX_CHARACTERS).value


STACK = ROOT / "stacks" / "Pulumi.local.yaml"
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


@pytest.fixture
def no_resources() -> Iterator[None]:
    # The SDK does not create a root resource if one exists, so no unfinished tasks remain.
    pulumi_settings.ROOT.set(object())  # type: ignore[arg-type]
    set_mocks(Recorder(refuse, refuse), project="trainyard", stack="test")
    yield
    pulumi_settings.ROOT.set(None)
    set_all_config({}, [])


@pytest.fixture
def configure(no_resources: None, monkeypatch: pytest.MonkeyPatch) -> Configure:
    """Set Pulumi's configuration as the engine does: sections as JSON, other values as text."""
    # The local cluster of another checkout may use the ports of the committed stack.
    monkeypatch.setattr("components.platforms.local.computer.port_in_use", lambda _: False)

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
