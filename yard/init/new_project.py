"""Writes a new Pulumi project with one stack file. The folder `project` is also a template for `pulumi new`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import distribution
from pathlib import Path

from trainyard.errors import Problem
from yard.init.answers import InitError
from yard.init.new_stack import SCHEMA, NewStack, prepare, schema_text
from yard.show import warn
from yard.stack.pulumi import interruptible

_TEMPLATE = Path(__file__).parent / "project"
_KEPT = ("README.md", ".gitignore")
"""Files that are not replaced if they exist."""


def new(options: Mapping[str, str], folder: Path, *, post: str | None, offline: bool, prompt: bool) -> NewStack:
    """Write a project with the stack `options["name"]`.

    An existing README.md or .gitignore is kept. Raises InitError if the options are invalid or another file exists, and
    for the errors of `prepare`. Then nothing is written.
    """
    name = options["name"]
    texts = project_files(name)
    kept = [path for path in _KEPT if (folder / path).is_file()]
    files = {folder / path: text for path, text in texts.items() if path not in kept}
    files[folder / "stacks" / SCHEMA] = schema_text()
    file = folder / "stacks" / f"Pulumi.{name}.yaml"
    fix = "move it, or name another folder with --dir"
    existing = [Problem(path=str(path), rule="exists", fix=fix) for path in (*files, file) if os.path.lexists(path)]
    if existing and prompt:
        raise InitError(*existing, command="yard new")
    try:
        # `force`: the name may also be that of a stack in the project that contains the current folder.
        stack = prepare(options, post=post, force=True, offline=offline, prompt=prompt)
    except InitError as error:
        raise InitError(*error.problems, *existing, command="yard new") from None
    if existing:
        raise InitError(*existing, command="yard new")
    files[file] = stack.text
    _write(files)
    for path in kept:
        own = (folder / path).read_text().splitlines()
        lines = [line for line in texts[path].splitlines() if line not in own and not line.startswith("#")]
        fix = f"; add these lines: {' '.join(lines)}" if lines and path == ".gitignore" else ""
        warn(f"{folder / path} exists and was not changed{fix}")
    enter = [f"cd {folder}"] if folder != Path() else []
    commands = (*enter, "pulumi install", ". .venv/bin/activate", *stack.next)
    return replace(stack, file=file, next=commands, project_files=tuple(map(str, files)))


def project_files(name: str) -> dict[str, str]:
    """Return the paths and the texts of a new project, as `pulumi new` writes them, without a stack file.

    `pulumi new` replaces ${PROJECT} and removes the section `template` (pulumi/pulumi@0410c79e8b46:
    sdk/go/common/workspace/templates.go, read 2026-11-24).
    """
    paths = [path for path in sorted(_TEMPLATE.rglob("*")) if path.is_file() and path.suffix != ".pyc"]
    texts = {str(path.relative_to(_TEMPLATE)): path.read_text().replace("${PROJECT}", name) for path in paths}
    texts["Pulumi.yaml"] = texts["Pulumi.yaml"].partition("template:\n")[0]
    lines = texts["requirements.txt"].splitlines()
    texts["requirements.txt"] = "\n".join([*lines[:-1], _requirement()]) + "\n"
    return texts


def _requirement() -> str:
    """Return the requirement that installs this version again, as `pip freeze` prints it."""
    found = distribution("trainyard")
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    if repository := origin.get("vcs_info"):
        return f"trainyard @ {repository['vcs']}+{origin['url']}@{repository['commit_id']}"
    return f"trainyard=={found.version}"


def _write(texts: Mapping[Path, str]) -> None:
    """Write all files or, after an error or an interruption, none. Raises InitError or KeyboardInterrupt."""
    made = list[Path]()
    with interruptible("removing the new files"):
        try:
            for file, text in texts.items():
                for parent in [each for each in reversed(file.parents) if not each.exists()]:
                    parent.mkdir()
                    made.append(parent)
                with file.open("x") as opened:
                    made.append(file)
                    opened.write(text)
        except BaseException as error:
            for path in reversed(made):
                path.rmdir() if path.is_dir() else path.unlink()
            if not isinstance(error, OSError):
                raise
            problem = Problem(path=str(error.filename), rule=str(error.strerror), fix="name another folder with --dir")
            raise InitError(problem, command="yard new") from error
