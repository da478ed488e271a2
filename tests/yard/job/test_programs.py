"""The argument of `yard submit`: Python files, Slurm scripts, commands, and files that cannot be submitted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.yard.conftest import FakeStack, MakeProgram, printed, refused, yard
from yard.run.submit import command_job

SLURM = "#!/bin/bash\n#SBATCH --nodes=1\nsrun hostname\n"
REFUSED: dict[str, tuple[str | bytes | None, str, str]] = {
    "missing.py": (None, "file not found", "use a path to a"),
    "trian.py": (None, "file not found", "write train.py"),
    "helo": (None, "recipe not found", "write hello"),
    "empty.py": ("\n", "is empty", "save the program in it"),
    "program.bin": (b"\x7fELF\x00\xff", "is not a text file", "yard submit -- ./program.bin"),
    "binary.py": (b"print(1)\n\x00", "is not a text file", "yard submit -- ./binary.py"),
    "notes.txt": ("words\n", "is not a Python file (.py)", "yard submit -- bash notes.txt"),
    "plain.sbatch": ("srun hostname\n", "must begin with `#!`", "#!/bin/bash"),
    "hello": ("words\n", "is a recipe and also a file", "use `./hello`"),
    ".": (None, "is a directory", "for example `yard submit train.py`"),
    "train.py": ("print(1)\n", "this job has no smoke size", "omit --smoke"),
    "job.sbatch": (SLURM, "this job has no smoke size", "omit --smoke"),
}
"""Content of each file, and the rule and the fix in its error message."""


@pytest.fixture
def folder(stack: FakeStack, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The current directory, which contains a program, a Slurm script, and a file that looks like a secret."""
    made = tmp_path_factory.mktemp("my project")
    for name, text in (("train.py", "print(1)\n"), ("job.sbatch", SLURM), (".env", "TOKEN=1\n")):
        (made / name).write_text(text)
    monkeypatch.chdir(made)
    return made


def dry_run(*words: str) -> Any:
    out = printed("submit", "--dry-run", "--json", *words)
    return json.loads(out)


@pytest.mark.parametrize("name", REFUSED)
def test_bad_file_has_one_message_with_a_fix(name: str, folder: Path, program: MakeProgram) -> None:
    text, rule, fix = REFUSED[name]
    if text is not None:
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    ssh = program("ssh", "exit 0")
    code, _, err = yard("submit", name, *(["--smoke"] if "smoke" in rule else []))
    assert (code, err.count("Fix: ")) == (1, 1)
    assert err.startswith(f"yard: 1 problem in {name}; nothing was submitted.")
    assert rule in err
    assert fix in err
    assert ssh.calls == []


def test_directory_named_like_a_recipe_is_ignored(folder: Path) -> None:
    (folder / "hello").mkdir()
    assert dry_run("hello")["name"] == "hello"


def test_python_file_starts_with_torchrun(folder: Path) -> None:
    seen = dry_run("train.py", "--nodes", "2", "--", "--lr", "1e-4")
    script = seen["files"]["job.sbatch"]
    assert (seen["name"], seen["starts"]) == ("train", "torchrun starts train.py on each of 2 nodes, 1 rank per node")
    assert "readonly workdir=code\n" in script
    assert "  start_torchrun \\\n" in script
    assert "    train.py --lr 1e-4\n" in script
    assert seen["code"] == {"from": str(folder), "files": ["job.sbatch", "train.py"]}
    assert "  exec python3 -u train.py\n" in dry_run("train.py", "--launcher", "srun")["files"]["job.sbatch"]


def test_program_runs_without_its_directory(folder: Path) -> None:
    seen = dry_run("train.py", "--no-code")
    assert seen["files"]["train.py"] == "print(1)\n"
    assert "code" not in seen
    assert "code" not in dry_run("--no-code", "--", "hostname")


def test_command_starts_once_per_node(folder: Path) -> None:
    seen = dry_run("--nodes", "2", "--", "python", "train.py", "--name", "a b")
    assert (seen["name"], seen["starts"]) == ("train", "the command starts once on each of 2 nodes")
    assert seen["files"]["run.sh"] == "python train.py --name 'a b'\n"
    assert dry_run("--", "echo $RANK | wc")["files"]["run.sh"] == "echo $RANK | wc\n"
    names = {"python My": "python", "x src/My_Train.py": "my_train", "FOO=1 bash go.sh && ls": "go", "!": "job"}
    assert {line: command_job([line], code=False)["name"] for line in names} == names
    assert command_job(["A" * 99], code=False)["name"] == "a" * 40


def test_home_directory_is_never_sent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for home in (folder, folder / "below"):
        monkeypatch.setenv("HOME", str(home))
        for file in ("train.py", "job.sbatch"):
            assert "your home directory, which is never sent" in refused("submit", file, "--dry-run")
        code, out, err = yard("submit", "--dry-run", "--json", "--", "hostname")
        assert (code, "code" in json.loads(out)) == (0, False)
        assert "no files are sent" in err


@pytest.mark.parametrize(("option", "warned"), [("--mpi=pmi2", True), ("--mpi pmi2", True), ("--mpi=pmix", False)])
def test_pmi2_gets_a_warning(option: str, warned: bool, folder: Path) -> None:
    """Ranks of an MPI library without PMI2 do not find each other, and the job succeeds."""
    line = f"srun {option} ./program"
    (folder / "job.sbatch").write_text(f"{SLURM}{line}\n")
    (folder / "job.yaml").write_text(f"name: mpi\nmpi: {option[-4:]}\nrun: ./program\n")
    for words in (["job.sbatch"], ["job.yaml"], ["--", line]):
        code, _, err = yard("submit", "--dry-run", *words)
        assert (words, code, "use pmix" in err) == (words, 0, warned)


def test_slurm_script_lists_all_problems(folder: Path, program: MakeProgram) -> None:
    options = ("--launcher", "srun", "--time", "soon", "--group", "cpu", "--name", "A B", "--set", "RANK=1")
    err = refused("submit", "job.sbatch", *options)
    paths = [line.strip().removeprefix("job.sbatch:").split(": ")[0] for line in err.splitlines()[1:]]
    assert paths == ["time", "name", "launcher", "--set.RANK", "group"]
