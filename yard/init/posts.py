"""The blog posts that `yard init --from` accepts.

A stack file that reproduces a post contains a line `# post: NAME`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from components.spec.explain import nearest
from components.stackfile.read import CLUSTER_KEY
from trainyard.errors import Problem
from yard.init.interview import InitError
from yard.init.known import Known
from yard.init.platforms import STARTERS
from yard.stack.workspace import committed_text, stack_names

_POST = re.compile(r"(?m)^# post: ([a-z][a-z0-9-]*)$")


def posts() -> dict[str, str]:
    """Return the stack that reproduces each blog post, by the name of the post."""
    found = {stack: _POST.search(committed_text(stack)) for stack in stack_names()}
    return {post[1]: stack for stack, post in found.items() if post}


def stack_of(post: str) -> str:
    """Return the name of the stack that reproduces a blog post. Raises InitError."""
    known = posts()
    if post in known:
        return known[post]
    similar = nearest(post, tuple(known))
    fix = f"write {similar}" if similar else f"use one of {', '.join(known)}"
    raise InitError("yard init", [Problem(path="--from", rule="must be the name of a post", fix=fix)])


def start_from(stack: str) -> Known:
    """Return the values of a committed stack file, except the user's own values: name, project, hosts, SSH."""
    base: dict[str, Any] = yaml.safe_load(committed_text(stack))["config"][CLUSTER_KEY]
    platform, group = base["platform"], next(iter(base["nodes"].values()))
    starter = STARTERS[platform["provider"]]
    values: Mapping[str, Any] = {
        "provider": platform["provider"],
        "region": platform.get(starter.place),
        "image": platform.get("image"),
        "machine": group["machine"],
        "count": group.get("count"),
        "budget": base.get("limits", {}).get("max_usd_per_hour"),
    }
    used = {"provider", *starter.keys}
    return Known(
        answers={key: str(text) for key, text in values.items() if key in used and text is not None}, base=base
    )
