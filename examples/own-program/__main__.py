"""A Pulumi program that creates a cluster and a disk for its data sets."""

import pulumi
import pulumi_gcp as gcp

from components.cluster.cluster import Cluster, ClusterArgs
from components.stackfile.settings import load_settings

# Reads `trainyard:cluster` in stacks/Pulumi.STACK.yaml, and runs the same checks as Trainyard's own program.
plan = load_settings().plan

# `Cluster` is a component resource, so it accepts resource options such as `depends_on`.
cluster = Cluster(plan.name, ClusterArgs(plan=plan))

disk = gcp.compute.Disk(
    "datasets",
    project=pulumi.Config("gcp").require("project"),
    zone="us-central1-a",
    type="pd-balanced",
    size=500,
)

# `yard --outputs FILE` reads these two outputs (docs/team.md). `cluster` is known only after all nodes are ready.
pulumi.export("cluster", cluster.outputs)
pulumi.export("user_private_key", cluster.user_private_key)
pulumi.export("admin_private_key", cluster.admin_private_key)
pulumi.export("admin_certificate", cluster.admin_certificate)
pulumi.export("disk", disk.name)
