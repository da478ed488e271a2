"""A Pulumi program that uses two of Trainyard's components for GPU machines in its own network on Google Cloud.

The machines run the program's own user-data, so there is no head and no Slurm.
"""

import pulumi
import pulumi_gcp as gcp

from components.platforms.gcp.nodes import (
    Capacity,
    MachineType,
    NodeArgs,
    NodeGroup,
    NodeGroupArgs,
    Placement,
    PlacementArgs,
)

config = pulumi.Config()
zone = config.require("zone")
region = zone.rpartition("-")[0]

# An existing subnet works as well, because the machines need only its self link.
network = gcp.compute.Network("lab", name="lab", auto_create_subnetworks=False)
subnet = gcp.compute.Subnetwork(
    "lab-gpus", name="lab-gpus", network=network.self_link, region=region, ip_cidr_range="10.0.0.0/24"
)
account = gcp.serviceaccount.Account("trainers", account_id="trainers")

placement = Placement("trainer-placement", PlacementArgs(name="trainer-compact", region=region))

group = NodeGroup(
    "trainer",
    NodeGroupArgs(
        machine=MachineType(
            name="a2-highgpu-8g",
            zone=zone,
            image=config.require("image"),
            boot_disk_gib=200,
            service_account=account.email,
            gpus=8,
        ),
        nodes=[
            NodeArgs(
                name=f"trainer-{index}",
                cards=[("GVNIC", subnet.self_link, f"10.0.0.{10 + index}")],
                user_data="#cloud-config\nruncmd: [nvidia-smi]\n",
            )
            for index in range(2)
        ],
        capacity=Capacity(placement_policy=placement.policy),
    ),
)

pulumi.export("machines", list(group.machines))
