"""The plain dataclasses say what the outputs contract says."""

from __future__ import annotations

from dataclasses import asdict, fields

import pytest

from components.outputs import ClusterOutputs, HeadOut, NodeOut
from jobs.facts import Cluster, Head, Node, cluster_of


@pytest.mark.parametrize(("kind", "model"), [(Head, HeadOut), (Node, NodeOut)])
def test_hosts_have_every_field_of_the_contract(kind: type[Head | Node], model: type[HeadOut | NodeOut]) -> None:
    assert {item.name for item in fields(kind)} == set(model.model_fields)


def test_the_cluster_asks_for_nothing_outside_the_contract() -> None:
    assert {item.name for item in fields(Cluster)} <= set(ClusterOutputs.model_fields)


def test_values_pass_unchanged(local_outputs: ClusterOutputs) -> None:
    cluster = cluster_of(local_outputs.model_dump(mode="json"))
    assert asdict(cluster.head) == local_outputs.head.model_dump()
    assert [asdict(node) for node in cluster.nodes] == [node.model_dump() for node in local_outputs.nodes]
    assert cluster.addresses == {"yard-head": "10.77.0.4", "yard-gpu-0": "10.77.2.1", "yard-gpu-1": "10.77.2.2"}
