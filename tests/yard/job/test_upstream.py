"""Recipes and launchers match the recorded facts about upstream files."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from yard.environments.definition import included
from yard.job.launcher import LAUNCHERS, launcher
from yard.job.loader import RECIPES, load_job, recipe_names

UPSTREAM: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "upstream.yaml").read_text())
FACTS: dict[str, Any] = UPSTREAM["facts"]
NAMED: dict[str, dict[str, str]] = UPSTREAM["recipes"]
_SPLIT = re.compile(r"[\s\"'`(){}<>|&;=,#\[\]]+")
_PATH = re.compile(r"[A-Za-z0-9_.~-]*(?:/[A-Za-z0-9_.-]+)+(?::[\w.-]+)?|[\w-]+\.(?:py|sh|ya?ml|json|txt)")
_OWN = re.compile(r"(?:/dev/\w+|/opt|/opt-host|/1|CHECKPOINTS.*|\$.*|venv/src/gpt-neox)")
"""Words that are not upstream names: devices, mount points, parts of sed commands, and folders of the job or its
environment."""


def file_of(fact: str) -> dict[str, Any]:
    """Return the facts about an upstream file. `fact` has the format `repository:path`."""
    name, _, path = fact.partition(":")
    found: dict[str, Any] = FACTS[name]["files"][path]
    return found


def without_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))


def texts(section: dict[str, Any]) -> Iterator[str]:
    """Yield the values in a recipe or smoke size that can contain upstream names."""
    for key in ("run", "setup", "script", "workdir"):
        yield section.get(key) or ""
    yield from map(str, section.get("args", ()))
    yield from section.get("files", {}).values()
    container = section.get("container") or {}
    yield from container.get("mounts", ())


def external_names(recipe: str) -> set[str]:
    """Return the paths, images and commands in a recipe that come from upstream projects."""
    raw: dict[str, Any] = yaml.safe_load((RECIPES / f"{recipe}.yaml").read_text())
    found: set[str] = set()
    for section in (raw, raw.get("smoke") or {}):
        for text in map(without_comments, texts(section)):
            words = [word for word in _SPLIT.split(text) if "$RUN_DIR" not in word]
            found |= {word for word in words if _PATH.fullmatch(word) and not _OWN.fullmatch(word)}
            found |= set(re.findall(r"(?m)^\s*exec\s+([\w./-]+)", text))
        if section.get("container"):
            found.add(section["container"]["image"])
    own = set(raw.get("files", {})) | {name.removesuffix(".in") for name in raw.get("files", {})}
    return found - own


@pytest.mark.parametrize("recipe", recipe_names())
def test_upstream_names_have_a_source(recipe: str) -> None:
    named = NAMED.get(recipe, {})
    assert external_names(recipe) == set(named)
    software = load_job(recipe, {}, {}, []).spec.software or ""
    for name, fact in named.items():
        if fact == "required":
            folder = name.removesuffix("/bin/activate").partition(":")[0]
            assert folder in software or "image" in software, f"{recipe}: software does not list {name}"
            continue
        facts = file_of(fact)
        path = fact.partition(":")[2]
        known = {path, facts.get("module"), *facts.get("written", ()), *map(str, facts.get("keys", {}).values())}
        known |= {entry.rpartition("/")[2] for entry in facts.get("written", ())}
        assert name in known or name in facts.get("about", ""), f"{fact} does not contain {name}"


def test_edited_files_have_recorded_keys() -> None:
    setups = {recipe: without_comments(load_job(recipe, {}, {}, []).spec.setup or "") for recipe in recipe_names()}
    edits = {recipe for recipe, text in setups.items() if re.search(r"\b(?:sed|awk|perl|patch|python3?)\b", text)}
    assert edits == {"neox-2.7b", "neox-20b"}
    for recipe in edits:
        facts = [file_of(fact) for fact in NAMED[recipe].values() if ":" in fact]
        assert any("keys" in found or "names" in found for found in facts)


def test_facts_have_source_date_and_use() -> None:
    for name, repository in FACTS.items():
        assert re.search(r"@[0-9a-f]{40}$|no commit known", repository["source"]), name
        assert isinstance(repository["read"], date), name
    used = {fact.partition(":")[0] for named in NAMED.values() for fact in named.values()} - {"required"}
    # The launcher tests below use these facts.
    assert set(FACTS) == used | {"deepspeed", "deeperspeed", "nccl-tests"}
    assert set(NAMED) <= set(recipe_names())


def test_the_environment_has_the_recorded_commits() -> None:
    commits = {checkout["name"]: checkout["commit"] for checkout in included("neox").checkouts}
    assert commits["gpt-neox"] == FACTS["gpt-neox"]["source"].partition("@")[2]
    assert commits["DeeperSpeed"] == FACTS["deeperspeed"]["source"].partition("@")[2]
    about = file_of("gpt-neox:requirements/requirements.txt")["about"]
    assert commits["DeeperSpeed"] in about
    assert commits["lm_dataformat"] in about


def test_the_synthetic_data_fits_the_tokenizer() -> None:
    job = load_job("neox-2.7b", {}, {}, []).spec
    chosen = yaml.safe_load(job.files["synthetic.yml.in"])["tokenizer-type"]
    assert chosen in file_of("gpt-neox:megatron/neox_arguments/neox_args.py")["choices"]["tokenizer_type"]
    ids = re.search(r"--vocab (\d+)", job.setup or "")
    assert ids is not None
    assert f"{chosen} has {ids[1]} ids" in file_of("gpt-neox:megatron/tokenizer/tokenizer.py")["about"]


@pytest.mark.parametrize("recipe", ["nccl-allreduce-hostfile", "nccl-allreduce-sbatch", "nccl-allreduce-container"])
def test_nccl_tests_supports_the_options(recipe: str) -> None:
    words = shlex.split(load_job(recipe, {}, {}, []).spec.run or "")
    options = file_of("nccl-tests:src/common.cu")["options"]
    assert words[2::2]
    assert set(words[2::2]) <= set(options)
    assert not any(word.startswith("-") for word in words[3::2])


@pytest.mark.parametrize("name", [name for name in LAUNCHERS if name.startswith("deepspeed")])
def test_deepspeed_supports_the_options(name: str) -> None:
    text = " ".join(line.removesuffix("\\") for line in launcher(name).lines({"file": "train.py", "ssh_port": "2222"}))
    words = shlex.split(text[text.index("exec deepspeed") :])
    options = {word for word in words if word.startswith("--") and " " not in word}
    assert "--master_addr" in options
    assert options <= set(file_of("deepspeed:deepspeed/launcher/runner.py")["options"])
    if "--launcher" in options:
        chosen = words[words.index("--launcher") + 1]
        assert chosen in file_of("deepspeed:deepspeed/launcher/constants.py")["choices"]["launcher"]


@pytest.mark.parametrize("file", ["synthetic.yml.in", "enwik8.yml.in"])
def test_2_7b_options_exist_and_are_not_repeated(file: str) -> None:
    own = yaml.safe_load(load_job("neox-2.7b", {}, {}, []).spec.files[file])
    names = {key.replace("-", "_"): value for key, value in own.items()}
    arguments = file_of("gpt-neox:megatron/neox_arguments/neox_args.py")
    runner = file_of("gpt-neox:megatron/neox_arguments/deepspeed_args.py")
    assert set(names) <= {*arguments["defaults"], *runner["defaults"]}
    assert names["launcher"] in runner["choices"]["launcher"]
    assert not set(names) & set(file_of("gpt-neox:configs/2-7B.yml")["names"])


def test_20b_layout_fits_its_nodes() -> None:
    job = load_job("neox-20b", {}, {}, []).spec
    pipe, model = 6, 4
    assert job.layout == f"tp{model}-pp{pipe}-zero1"
    assert job.nodes * (job.gpus_per_node or 0) % (pipe * model) == 0
    assert file_of("gpt-neox:configs/20B.yml")["keys"]["num_attention_heads"] % model == 0


def test_neox_launcher_runs_deepy_with_pdsh() -> None:
    work = launcher("neox").work
    assert "./deepy.py" in work
    assert "DLTS_HOSTFILE" in work
    assert "DLTS_HOSTFILE" in file_of("gpt-neox:deepy.py")["about"]
    assert file_of("gpt-neox:megatron/neox_arguments/deepspeed_args.py")["defaults"]["launcher"] == "pdsh"
    assert "launcher" not in file_of("gpt-neox:configs/20B.yml")["keys"]
