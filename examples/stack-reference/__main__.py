"""A Pulumi program that reads the outputs of a deployed cluster from the same backend."""

import pulumi

reference = pulumi.StackReference(pulumi.Config().require("cluster_stack"))

# trainyard/outputs.py defines this output's format. The output contains no secrets.
cluster = reference.require_output("cluster")

pulumi.export("head", cluster["head"]["address"])
pulumi.export("nodes", cluster["nodes"].apply(lambda nodes: [node["name"] for node in nodes]))
pulumi.export("gpus", cluster["nodes"].apply(lambda nodes: sum(node["gpus"] for node in nodes)))
