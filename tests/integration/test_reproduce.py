"""`yard reproduce POST --smoke` on the local cluster."""

from __future__ import annotations

import pytest

from tests.integration.project import Project
from yard.reproduce.posts import post_names, read_post

pytestmark = pytest.mark.integration

LONGEST_SECONDS = 300
DEFAULT = "lambda"
"""The post in the default set of tests. It has a data step."""


@pytest.mark.parametrize(
    "post", [pytest.param(name, marks=() if name == DEFAULT else pytest.mark.full) for name in post_names()]
)
def test_the_smallest_size_of_a_post_runs(post: str, cluster: Project) -> None:
    done = cluster.yard("reproduce", post, "--smoke", timeout=2 * LONGEST_SECONDS)
    jobs = len(read_post(post, smoke=True).jobs)
    assert f"{post}: {jobs} job{'' if jobs == 1 else 's'} completed in " in done.out
    assert done.seconds <= LONGEST_SECONDS
