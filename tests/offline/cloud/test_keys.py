"""A stack's keys with the real engine: a stack of an older version keeps its keys, and each key is rotated alone."""

from __future__ import annotations

import pytest

from tests.offline.cloud.stack import ROOT, TestStack

pytestmark = pytest.mark.engine

KEPT = ("admin_private", "admin_public", "cluster_private", "cluster_public")
_OLD = """
from pulumi.dynamic import CreateResult, Resource, ResourceProvider

names = {names!r}


class Provider(ResourceProvider):
    def create(self, props):
        outs = dict((name, "old " + name) for name in names)
        return CreateResult(id_="yard-keys", outs=dict(outs, cluster="yard"))


class Keys(Resource):
    admin_private: pulumi.Output[str]
    admin_public: pulumi.Output[str]
    cluster_private: pulumi.Output[str]
    cluster_public: pulumi.Output[str]


keys = Keys(Provider(), "yard-keys", dict(dict.fromkeys(names), cluster="yard"))
"""
"""The resource as older versions declared it, with the munge key. Its serialized provider also differs."""
_NEW = """
from components.keys import StackKeys

every = StackKeys("yard", "yard", pulumi.ResourceOptions())
keys = every.cluster
pulumi.export("user", pulumi.Output.all(every.user.private, every.user.public))
pulumi.export("munge", every.munge.key)
"""
_EXPORT = "".join(f'pulumi.export("{name}", keys.{name})\n' for name in KEPT)


@pytest.fixture
def keys(stack: TestStack) -> TestStack:
    # The engine runs the provider in a separate process.
    stack.environment["PYTHONPATH"] = str(ROOT)
    return stack


@pytest.mark.full
def test_a_stack_of_an_older_version_keeps_its_keys(keys: TestStack) -> None:
    keys.write(_OLD.format(names=(*KEPT, "munge_key")) + _EXPORT)
    old = keys.up()
    assert old.code == 0, old
    before = keys.outputs()
    keys.write(_NEW + _EXPORT)
    new = keys.up()
    assert new.code == 0, new
    after = keys.outputs()
    assert {name: after[name] for name in KEPT} == before
    assert after["munge"]
    settled = keys.up("--expect-no-changes")
    assert settled.code == 0, settled


def test_each_key_is_rotated_alone(keys: TestStack) -> None:
    keys.write(_NEW + _EXPORT)
    assert keys.up().code == 0
    before = keys.outputs()
    for name, output in (("yard-user-key", "user"), ("yard-munge-key", "munge")):
        rotated = keys.up("--replace", f"urn:pulumi:test::small::pulumi-python:dynamic:Resource::{name}")
        assert rotated.code == 0, rotated
        after = keys.outputs()
        assert [key for key in before if before[key] != after[key]] == [output]
        before = after
