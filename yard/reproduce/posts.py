"""The blog posts that `yard reproduce` runs. Each file in the folder posts describes the post with the same name."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainyard.errors import JobError
from trainyard.strict_yaml import load_own
from yard.job.loader import has_smoke

FOLDER = Path(__file__).parent / "posts"
LOCAL = "local"


@dataclass(frozen=True, kw_only=True)
class Data:
    """A synthetic dataset: its path below the shared path, the number of tokens, and the vocabulary size."""

    name: str
    tokens: str
    vocab: int

    @property
    def arguments(self) -> list[str]:
        """The arguments for `yard data`."""
        return ["synth", self.name, "--tokens", self.tokens, "--vocab", str(self.vocab)]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A job: a recipe, arguments for its program, and the number of nodes, or None for the recipe's default.

    `name` distinguishes two jobs with the same recipe.
    """

    recipe: str
    name: str = ""
    args: Sequence[str] = ()
    nodes: int | None = None

    def words(self, *, smoke: bool) -> list[str]:
        """Return the arguments for `yard submit`."""
        nodes = ["--nodes", str(self.nodes)] if self.nodes is not None else []
        return [
            self.recipe,
            *nodes,
            *(["--smoke"] if smoke and has_smoke(self.recipe) else []),
            *(["--", *self.args] if self.args else []),
        ]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure in the post. `pattern` finds the measured value in the log of `job`, which is the name of a job or its
    recipe. If `job` is None, all logs are searched."""

    name: str
    post: str
    pattern: str
    job: str | None = None

    def ours(self, logs: Mapping[str, str]) -> str | None:
        """Return the measured value from the jobs' logs, or None if it is missing. The last match is used."""
        log = logs.get(self.job, "") if self.job is not None else "\n".join(logs.values())
        found = re.findall(self.pattern, log)
        return found[-1] if found else None


@dataclass(frozen=True, kw_only=True)
class Post:
    """A blog post. `image` is a docker image that the jobs need, and `differs` describes differences from the post."""

    name: str
    title: str
    stack: str
    jobs: Sequence[Run]
    figures: Sequence[Figure] = ()
    data: Data | None = None
    image: str | None = None
    differs: str = ""
    smoke: bool = False

    @property
    def commands(self) -> list[str]:
        """The equivalent commands, for a dry run."""
        on = ["--stack", self.stack]
        lines = [] if self.data is None else [["yard", "data", *self.data.arguments, *on]]
        for job in self.jobs:
            recipe, *rest = job.words(smoke=self.smoke)
            lines.append(["yard", "submit", recipe, *on, "--follow", *rest])
        return [shlex.join(line) for line in lines]


def post_names() -> list[str]:
    """Return the names of the posts in alphabetical order."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def read_post(name: str, *, smoke: bool) -> Post:
    """Return a post, or its smallest size for the local stack. Raises JobError for an unknown name."""
    if name not in post_names():
        fix = f"use one of {', '.join(post_names())}"
        raise JobError(f"there is no post {name!r}. Fix: {fix}.")
    raw = load_own((FOLDER / f"{name}.yaml").read_text())
    small = raw.pop("smoke")
    figures = tuple(Figure(**figure) for figure in raw.pop("figures"))
    post = Post(**_steps(raw), name=name, figures=figures)
    return (
        post
        if not smoke
        else replace(post, **_steps({"data": None, "image": None, **small}), stack=LOCAL, figures=(), smoke=True)
    )


def _steps(raw: Mapping[str, Any]) -> dict[str, Any]:
    data = raw.get("data")
    return {
        **raw,
        "data": None if data is None else Data(**data),
        "jobs": tuple(Run(**job) for job in raw["jobs"]),
    }
