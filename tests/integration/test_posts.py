"""`yard reproduce POST --smoke` on the local cluster. Runs before test_removal.py, which deletes the cluster."""

from __future__ import annotations

import pytest

from tests.integration.project import Project
from yard.reproduce.posts import post_names, read_post

pytestmark = [pytest.mark.integration, pytest.mark.full]

LONGEST_SECONDS = 300


@pytest.mark.parametrize("post", post_names())
def test_the_smallest_size_of_a_post_runs(post: str, cluster: Project) -> None:
    done = cluster.yard("reproduce", post, "--smoke", timeout=2 * LONGEST_SECONDS)
    jobs = len(read_post(post, smoke=True).jobs)
    assert f"{post}: {jobs} job{'' if jobs == 1 else 's'} completed in " in done.out
    assert done.seconds <= LONGEST_SECONDS
