"""A stack file in, a training cluster out."""

import atexit
import gc

import pulumi

from components import sdk_savings
from components.cluster import Cluster
from components.outputs import ssh_command
from components.settings import load_settings


async def program() -> pulumi.Inputs:
    """Declare the stack, and wait for it.

    The SDK would wait by itself, but it looks through all that is open whenever one thing is done.
    """
    settings = load_settings()
    cluster = Cluster(settings.spec.name, settings.spec, settings.plan)
    await cluster.declare()
    await cluster.outputs.is_known()
    return {
        "cluster": cluster.outputs,
        "head_address": cluster.outputs["head"]["address"],
        "ssh": cluster.outputs["head"].apply(lambda head: ssh_command(head, pulumi.get_stack())),
        "usd_per_hour": cluster.outputs["usd_per_hour"],
        "ssh_private_key": cluster.ssh_private_key,
    }


# Of a stack with hundreds of nodes nearly all objects live to the end: looking through them time and again finds none.
gc.set_threshold(100_000, 50, 1000)
# Nor is there anything to find as it ends: looking was a second of a preview of 512 machines.
atexit.register(gc.freeze)
sdk_savings.apply()
pulumi.run(program)
