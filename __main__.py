"""A stack file in, a training cluster out."""

import pulumi

from components.cluster import Cluster
from components.outputs import ssh_command
from components.settings import load_settings

settings = load_settings()
cluster = Cluster(settings.spec.name, settings.spec, settings.plan)

pulumi.export("cluster", cluster.outputs)
pulumi.export("head_address", cluster.outputs["head"]["address"])
pulumi.export("ssh", cluster.outputs["head"].apply(ssh_command))
pulumi.export("usd_per_hour", cluster.outputs["usd_per_hour"])
pulumi.export("ssh_private_key", cluster.ssh_private_key)
