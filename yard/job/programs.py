"""The argument of `yard submit`: a recipe, a job file, a Python file, a Slurm script, or a shell command."""

from __future__ import annotations

import ast
import re
import shlex
import warnings
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from trainyard.errors import JobFileError, Problem
from yard.job.loader import find, recipe_names

COMMAND_LINE = "command line"
"""Name of a shell command in messages."""
_YAML = (".yaml", ".yml")
_SLURM = (".sbatch", ".slurm")
_DIRECTIVE = re.compile(r"(?m)^#SBATCH\s")
_NAME = re.compile(r"[^a-z0-9._-]+")
_LONGEST_NAME = 40


class Program(StrEnum):
    """Kinds of files that `yard submit` accepts."""

    JOB = "job file"
    PYTHON = "Python file"
    SLURM = "Slurm script"


def kind_of(job: str) -> Program:
    """Return the kind of a file, or JOB for a recipe. Raises JobFileError if the file cannot be submitted."""
    path = Path(job)
    if job in recipe_names():
        if path.is_file():
            rule = "is a recipe and also a file in this directory"
            fix = f"use `./{job}` for the file; to submit the recipe, run yard in another directory"
            raise JobFileError(job, [Problem(path="(file)", rule=rule, fix=fix)])
        return Program.JOB
    if path.is_dir():
        fix = f"name the program, for example `yard submit {path / 'train.py'}`"
        raise JobFileError(job, [Problem(path="(file)", rule="is a directory", fix=fix)])
    if path.suffix in _YAML or not path.exists():
        find(job)
        return Program.JOB
    kind, problems = _kind_of_text(path)
    if problems or kind is None:
        raise JobFileError(job, problems)
    return kind


def python_job(path: Path, *, code: bool) -> dict[str, Any]:
    """Return the keys of a job that runs a Python file. With `code`, the file's directory is sent with the job."""
    program = {"code": ".", "script": path.name} if code else {"workload": f"./{path.name}"}
    return {"name": job_name(path.stem), "launcher": "torchrun", **program}


def command_job(words: Sequence[str], *, code: bool) -> dict[str, Any]:
    """Return the keys of a job that runs a shell command once on each node.

    A single word is run as a shell command line. With `code`, the current directory is sent with the job.
    """
    line = words[0] if len(words) == 1 else shlex.join(words)
    name = {"name": job_name(_program_in(line)), "launcher": "srun-node", "run": line}
    return {**name, "code": "."} if code else name


def job_name(text: str) -> str:
    """Return the text as a valid job name."""
    return _NAME.sub("-", text.lower())[:_LONGEST_NAME].strip("._-") or "job"


def _program_in(line: str) -> str:
    """Return the name of the first script in a command, without the folder and the suffix.

    For a command without a script, return the name of its program.
    """
    words = [word for word in re.split(r"\s+", line.strip()) if not word.startswith("-")]
    scripts = [word for word in words if word.endswith((".py", ".sh"))]
    return Path((scripts or words or ["job"])[0]).stem


def _kind_of_text(path: Path) -> tuple[Program | None, list[Problem]]:
    text, problem = _text_of(path)
    if problem is not None:
        return None, [problem]
    if path.suffix == ".py":
        return Program.PYTHON, list(_syntax_problems(text))
    if path.suffix in _SLURM or _DIRECTIVE.search(text):
        fix = "write `#!/bin/bash` into the first line"
        shebang = Problem(path="line 1", rule="a Slurm script must begin with `#!`", fix=fix)
        return Program.SLURM, [] if text.startswith("#!") else [shebang]
    rule = "is not a Python file (.py), a Slurm script (#SBATCH lines) or a job file (.yaml)"
    fix = f"rename it, or run it as a command: `yard submit -- bash {shlex.quote(path.name)}`"
    return None, [Problem(path="(file)", rule=rule, fix=fix)]


def _text_of(path: Path) -> tuple[str, Problem | None]:
    if not path.is_file():
        return "", Problem(path="(file)", rule="is not a regular file", fix="name a Python file or a Slurm script")
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        return "", Problem(path="(file)", rule=f"cannot be read ({error.strerror})", fix="make it readable")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        fix = f"name a Python file, or run the program as a command: `yard submit -- ./{shlex.quote(path.name)}`"
        return "", Problem(path="(file)", rule="is not a text file in UTF-8", fix=fix)
    if not text.strip():
        return "", Problem(path="(file)", rule="is empty", fix="save the program in it")
    return text, None


def _syntax_problems(text: str) -> Iterator[Problem]:
    # The nodes may have a newer Python than this machine, so the fix names a command that skips this check.
    fix = "correct the line; for the syntax of a newer Python on the nodes, use `yard submit -- python3 FILE`"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except SyntaxError as error:
        yield Problem(path=f"line {error.lineno or 1}", rule=f"is not valid Python ({error.msg})", fix=fix)
    except (ValueError, RecursionError) as error:
        yield Problem(path="(file)", rule=f"is not valid Python ({error})", fix=fix)
