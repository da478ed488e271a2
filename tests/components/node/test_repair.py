"""Parameters of the repair service."""

from __future__ import annotations

from dataclasses import replace

import pytest
from repair.service import read_site

from components.cluster.outputs import Reach, cluster_outputs
from components.node.parameters import render_repair
from components.plan.plan import ClusterPlan
from tests.yard.conftest import HOST_KEY
from trainyard.outputs import Head


def with_spares(plan: ClusterPlan, spares: int) -> ClusterPlan:
    groups = {name: section.model_copy(update={"spares": spares}) for name, section in plan.groups.items()}
    return replace(plan, groups=groups)


def test_service_reads_its_parameters(local_plan: ClusterPlan) -> None:
    text = render_repair(with_spares(local_plan, 1))
    assert text is not None
    site = read_site(text)
    assert site.silent_seconds == 15
    assert [(group.name, group.spares) for group in site.groups] == [("gpu", 1)]
    assert site.addresses == {host.name: str(host.private_ip) for host in local_plan.workers}


def test_cluster_without_slurm_has_no_parameters(local_plan: ClusterPlan) -> None:
    assert render_repair(replace(local_plan, scheduler="none")) is None


@pytest.mark.parametrize(("spares", "shown"), [(1, {"gpu": 1}), (0, {})])
def test_outputs_contain_the_spares(local_plan: ClusterPlan, spares: int, shown: dict[str, int]) -> None:
    plan = with_spares(local_plan, spares)
    head = Head(
        name="h", address="127.0.0.1", port=22, private_ip="10.77.0.4", user="a", admin_user="b", host_key=HOST_KEY
    )
    reach = {host.name: Reach(host_key=HOST_KEY, address=None, port=22) for host in plan.workers}
    assert cluster_outputs(plan, head, reach).spares == shown
