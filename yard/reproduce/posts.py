"""The blog posts that `yard reproduce` runs. Each post is described by a file in the folder `posts`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainyard.errors import JobError
from trainyard.strict_yaml import load_own
from yard.job.loader import LoadedJob, has_smoke, load_job

FOLDER = Path(__file__).parent / "posts"
LOCAL = "local"


@dataclass(frozen=True, kw_only=True)
class Run:
    """A job: a recipe and its program's arguments. `nodes` is None for the recipe's default number of nodes.

    `name` distinguishes jobs that use the same recipe.
    """

    recipe: str
    name: str = ""
    args: Sequence[str] = ()
    nodes: int | None = None

    def load(self, *, smoke: bool) -> LoadedJob:
        """Return the job. A recipe without a smoke size is already small."""
        overrides: dict[str, Any] = {} if self.nodes is None else {"nodes": self.nodes}
        return load_job(self.recipe, overrides, {}, self.args, smoke=smoke and has_smoke(self.recipe))

    def command(self, stack: str, *, smoke: bool) -> list[str]:
        """Return the command that submits the job."""
        nodes = ["--nodes", str(self.nodes)] if self.nodes is not None else []
        small = ["--smoke"] if smoke and has_smoke(self.recipe) else []
        args = ["--", *self.args] if self.args else []
        return ["yard", "submit", self.recipe, "--stack", stack, "--follow", *nodes, *small, *args]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure in the post. `pattern` finds the measured value in the log of `job`, which is a job's name or recipe.

    If `job` is None, the value is searched in all logs.
    """

    name: str
    post: str
    pattern: str
    job: str | None = None

    def ours(self, logs: Mapping[str, str]) -> str | None:
        """Return the last measured value in the jobs' logs, or None if the logs contain no value."""
        log = logs.get(self.job, "") if self.job is not None else "\n".join(logs.values())
        found = re.findall(self.pattern, log)
        return found[-1] if found else None


@dataclass(frozen=True, kw_only=True)
class Post:
    """A blog post. `data` contains the name, number of tokens and vocabulary size of its synthetic data, if any.

    `image` is a docker image that the jobs need, and `differs` says how they differ from the post.
    """

    name: str
    title: str
    stack: str
    jobs: Sequence[Run]
    figures: Sequence[Figure] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    image: str | None = None
    differs: str = ""
    smoke: bool = False

    @property
    def data_words(self) -> list[str]:
        """The arguments that make `yard data` create the synthetic data."""
        name, tokens, vocab = (str(self.data[key]) for key in ("name", "tokens", "vocab"))
        return ["synth", name, "--tokens", tokens, "--vocab", vocab]

    @property
    def commands(self) -> list[str]:
        """The commands that a user would run instead of `yard reproduce`."""
        first = [["yard", "data", *self.data_words, "--stack", self.stack]] if self.data else []
        return [
            shlex.join(line) for line in (*first, *(run.command(self.stack, smoke=self.smoke) for run in self.jobs))
        ]


def post_names() -> list[str]:
    """Return the posts' names in alphabetical order."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def read_post(name: str, *, smoke: bool) -> Post:
    """Return a post. If `smoke` is set, return its small version for the local stack. Raises JobError if unknown."""
    if name not in post_names():
        raise JobError(f"there is no post {name!r}. Fix: use one of {', '.join(post_names())}.")
    raw = load_own((FOLDER / f"{name}.yaml").read_text())
    small, figures = raw.pop("smoke"), tuple(Figure(**figure) for figure in raw.pop("figures"))
    if smoke:
        raw, figures = {"title": raw["title"], **small, "stack": LOCAL, "smoke": True}, ()
    return Post(**{**raw, "jobs": tuple(Run(**job) for job in raw["jobs"])}, name=name, figures=figures)
