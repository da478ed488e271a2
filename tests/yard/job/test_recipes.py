"""Recipes: goldens, `setup` commands, requirements, node groups, and the recorded facts about upstream files."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import CheckGolden
from tests.yard.conftest import FakeStack, printed
from trainyard.errors import JobFileError, StackError
from trainyard.outputs import Cluster
from yard.environments.definition import included
from yard.job.launcher import LAUNCHERS, launcher
from yard.job.loader import RECIPES, LoadedJob, has_smoke, load_job, recipe_names
from yard.job.placement import place
from yard.run.script import render_script

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


SMALL = [name for name in recipe_names() if has_smoke(name)]


def home(job: LoadedJob, cluster: Cluster, nodes: int = 16) -> Cluster:
    """Return a cluster that is large enough for all recipes. The cluster's scheduler supports the job's container."""
    first = cluster.nodes[0]
    many = tuple(replace(first, name=f"yard-gpu-{index}") for index in range(nodes))
    docker = job.spec.container is not None and job.spec.container.runtime == "docker"
    return replace(cluster, nodes=many, scheduler="none" if docker else "slurm")


@pytest.mark.parametrize("recipe", recipe_names())
def test_full_size_matches_the_golden(recipe: str, wide: Cluster, golden: CheckGolden) -> None:
    job = load_job(recipe, {}, {}, [])
    golden(f"jobs/recipes/{recipe}.sh", render_script(job, place(job, home(job, wide))))


@pytest.mark.parametrize("recipe", SMALL)
def test_smoke_size_fits_the_local_stack(recipe: str, local: Cluster, golden: CheckGolden) -> None:
    job = load_job(recipe, {}, {}, [], smoke=True)
    assert place(job, local).tasks_per_node == 1
    golden(f"jobs/recipes/{recipe}-smoke.sh", render_script(job, place(job, local)))
    if job.spec.mpi is None:
        assert place(job, replace(local, scheduler="none")).nodes <= 2


@pytest.mark.parametrize("recipe", sorted({*recipe_names()} - {*SMALL, "hello", "allreduce", "train-tiny"}))
def test_missing_smoke_size_is_explained(recipe: str) -> None:
    assert "smoke size" in (load_job(recipe, {}, {}, []).spec.unverified or "")
    with pytest.raises(JobFileError, match="no smoke size"):
        load_job(recipe, {}, {}, [], smoke=True)


@pytest.mark.parametrize(
    ("recipe", "smoke"), [*((name, False) for name in recipe_names()), *((x, True) for x in SMALL)]
)
def test_workload_accepts_the_arguments(recipe: str, smoke: bool) -> None:
    job = load_job(recipe, {}, {}, [], smoke=smoke)
    if job.workload is not None:
        assert import_module(f"yard.workloads.{job.workload.stem}").parse(list(job.spec.args)) is not None


def test_too_large_model_is_refused_with_its_memory(wide: Cluster, local: Cluster) -> None:
    job = load_job("opt-175b", {"nodes": 2}, {}, [])
    with pytest.raises(JobFileError) as caught:
        place(job, home(job, wide))
    (problem,) = caught.value.problems
    assert problem.path == "model"
    assert "opt-175b with fsdp on 16 h100 of 80 GB needs 198.2 GB per GPU" in problem.rule
    assert "optimizer" in problem.rule
    with pytest.raises(JobFileError, match="needs real GPUs"):
        place(job, local)
    with pytest.raises(JobFileError, match="layout: its memory cannot be computed"):
        place(load_job("neox-20b", {"nodes": 2}, {}, []), home(job, wide))


def test_recipe_list_contains_requirements(stack: FakeStack) -> None:
    rows: list[dict[str, Any]] = json.loads(printed("recipes", "--json"))
    by_name = {row["name"]: row for row in rows}
    assert list(by_name) == recipe_names()
    assert "pdsh" in by_name["neox-2.7b"]["software"]
    assert (by_name["neox-2.7b"]["smoke"], by_name["opt-125m"]["smoke"]) == (False, True)
    assert "neox-2.7b" in printed("recipes")
    assert "never run" in printed("recipes", "neox-20b")
    assert stack.pulumi.calls == []


CONFIG_20B: dict[str, str | int] = file_of("gpt-neox:configs/20B.yml")["keys"]


def run_setup(recipe: str, checkout: Path, run_dir: Path) -> subprocess.CompletedProcess[str]:
    """Run a recipe's `setup` in `checkout`. The folder above `checkout` replaces /shared/data."""
    lines = load_job(recipe, {}, {}, []).spec.setup or ""
    lines = lines.replace("/shared/data/", f"{checkout.parent}/")
    (checkout / "configs").mkdir(parents=True, exist_ok=True)
    text = "".join(f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in CONFIG_20B.items())
    (checkout / "configs" / "20B.yml").write_text("{\n" + text + "}\n")
    run_dir.mkdir(exist_ok=True)
    environment = {"PATH": os.environ["PATH"], "RUN_DIR": str(run_dir), "CHECKPOINT_DIR": "/shared/checkpoints"}
    command = ["bash", "-euo", "pipefail", "-c", lines]
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)


def test_setup_edits_the_20b_configuration(tmp_path: Path) -> None:
    done = run_setup("neox-20b", tmp_path / "neox", tmp_path / "run")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    made = yaml.safe_load((tmp_path / "run" / "20B.yml").read_text())
    changed = {"pipe_parallel_size": 6, "model_parallel_size": 4, "save": "/shared/checkpoints"}
    assert made == CONFIG_20B | changed | {"load": "/shared/checkpoints"}


@pytest.mark.parametrize("data", ["synthetic", "enwik8"])
def test_setup_writes_the_2_7b_configuration(data: str, tmp_path: Path) -> None:
    run_dir, checkout = tmp_path / "run", tmp_path / "neox"
    run_dir.mkdir()
    for name, text in load_job("neox-2.7b", {}, {}, []).spec.files.items():
        (run_dir / name).write_text(text)
    index = checkout / "data" / "enwik8" / "enwik8_text_document.idx" if data == "enwik8" else tmp_path / "neox.idx"
    index.parent.mkdir(parents=True, exist_ok=True)
    index.touch()
    done = run_setup("neox-2.7b", checkout, run_dir)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    made = yaml.safe_load((run_dir / "local.yml").read_text())
    places = {"save": "/shared/checkpoints", "load": "/shared/checkpoints", "log-dir": "/shared/checkpoints/logs"}
    assert made == yaml.safe_load((run_dir / f"{data}.yml.in").read_text()) | places


def test_setup_names_the_command_for_missing_data(tmp_path: Path) -> None:
    done = run_setup("neox-2.7b", tmp_path / "neox", tmp_path / "run")
    assert done.returncode == 2
    assert "run `yard data synth data/neox --tokens 50M --vocab 512`" in done.stdout


def test_sbatch_benchmark_loads_the_mpi_module(tmp_path: Path) -> None:
    """Without the module, the nccl-tests binaries in Azure's image do not find libmpi."""
    modules = tmp_path / "modules.sh"
    modules.write_text('module() { echo "module $* $NOT_SET"; }\n')
    setup = load_job("nccl-allreduce-sbatch", {}, {}, []).spec.setup or ""
    command = ["bash", "-euo", "pipefail", "-c", setup.replace("/etc/profile.d/modules.sh", str(modules))]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.rstrip() == "module load mpi/hpcx"
    modules.unlink()
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == ""


def test_jobs_do_not_use_spares(wide: Cluster) -> None:
    cluster = replace(wide, spares={"gpu": 1})
    assert place(load_job("hello", {"nodes": 3}, {}, []), cluster).nodes == 3
    with pytest.raises(JobFileError, match="needs 4 nodes, but group 'gpu' has 3 for jobs, and 1 spare"):
        place(load_job("hello", {"nodes": 4}, {}, []), cluster)


def test_job_runs_in_the_first_group_with_enough_gpu_memory(wide: Cluster, local: Cluster) -> None:
    small = tuple(replace(node, name=f"small-{node.name}", group="small", gpus=8) for node in local.nodes)
    cluster = replace(wide, nodes=(*small, *wide.nodes))
    job = load_job("opt-6.7b-zero3", {"nodes": 2}, {}, [])
    assert job.spec.model is not None
    assert place(job, cluster).groups == ("gpu",)
    with pytest.raises(JobFileError, match="none on the nodes of group 'small'"):
        place(job, replace(wide, nodes=small))


@pytest.mark.parametrize(
    ("fabric", "env", "refused"),
    [
        ("gpudirect-tcpxo", {"NCCL_PROTO": "Simple", "NCCL_BUFFSIZE": "4194304"}, ["NCCL_BUFFSIZE", "NCCL_PROTO"]),
        ("gpudirect-tcpxo", {"NCCL_PROTO": "Simple,LL128", "NCCL_DEBUG": "INFO"}, []),
        ("gpudirect-tcpxo", {"NCCL_PROTO": "Simple", "NCCL_SHIMNET_GUEST_CONFIG_CHECKER_CONFIG_FILE": "/x.txt"}, []),
        ("gvnic", {"NCCL_PROTO": "Simple"}, []),
    ],
)
def test_settings_that_the_nccl_plugin_refuses_are_problems(
    wide: Cluster, fabric: str, env: dict[str, str], refused: list[str]
) -> None:
    """The plugin would end the job after its machines have started it."""
    job = load_job("hello", {}, env, [])
    cluster = replace(wide, nodes=tuple(replace(node, fabric=fabric) for node in wide.nodes))
    found: list[str] = []
    try:
        place(job, cluster)
    except JobFileError as error:
        found = [problem.path for problem in error.problems]
    assert found == [f"env.{name}" for name in refused]


UNREADY = "the gate on the head has not passed"


def test_a_cluster_that_is_not_ready_runs_no_job(wide: Cluster) -> None:
    for cluster in (replace(wide, unready=UNREADY), replace(wide, unready=UNREADY, nodes=())):
        with pytest.raises(StackError, match=f"has not become ready: {UNREADY}. Fix: .*`pulumi up` again"):
            place(load_job("hello", {}, {}, []), cluster)


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
