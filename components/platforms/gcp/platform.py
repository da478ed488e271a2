"""GcpPlatform creates a plan's machines in Compute Engine."""

from __future__ import annotations

import pulumi
import pulumi_gcp
from pulumi_gcp import compute, serviceaccount

from components.node.parameters import SharedFiles
from components.node.user_data import ADMIN_USER
from components.plan.plan import HostPlan, Role
from components.platforms.base import Host, Platform, PlatformArgs, ssh_address
from components.platforms.gcp.host_keys import host_key
from components.platforms.gcp.layout import cards, networks
from components.platforms.gcp.machine import DATA_DISK, MachineArgs, image_below, image_of, machine
from components.platforms.gcp.network import Networks
from components.platforms.gcp.spec import GcpSpec
from components.platforms.gcp.storage import data_disk, filestore_files
from components.platforms.gcp.tunnel import tunnel_command


class GcpPlatform(Platform):
    """Networks with Cloud NAT, one machine per host, and the shared storage."""

    def __init__(self, name: str, args: PlatformArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        self._plan = args.plan
        self._spec = spec = args.plan.platform_spec(GcpSpec)
        # Without an explicit provider, the shell's default project would be used.
        provider = pulumi_gcp.Provider(
            f"{name}-provider",
            project=spec.project,
            region=spec.region,
            zone=spec.zone,
            default_labels={"trainyard-cluster": args.plan.name},
            opts=pulumi.ResourceOptions(parent=opts.parent if opts else None),
        )
        own = pulumi.ResourceOptions(providers=[provider])
        super().__init__(name, args, pulumi.ResourceOptions.merge(opts, own))
        self._rolled = args.rolled
        self.image = image_of(args.plan)
        self._child = pulumi.ResourceOptions(parent=self)
        self._layout = networks(args.plan)
        self._networks = Networks(args.plan, self._layout, self._child)
        self._account = self._make_account()
        self._policies = self._make_policies()
        self._public = self._make_public_address() if args.plan.access.via == "public" else None
        self._data_disk: compute.Disk | None = None
        self.shared = self._make_shared_storage()
        self._user_data = args.user_data(self.shared)
        self.hosts = [self._host(host, self._machine(host)) for host in args.plan.hosts]
        self.register_outputs({})

    def _make_account(self) -> pulumi.Output[str]:
        """Declare a service account without roles. The project's default account has the Editor role."""
        account = serviceaccount.Account(
            f"{self._plan.name}-nodes",
            account_id=f"{self._plan.name}-nodes",
            display_name=f"Machines of the Trainyard cluster {self._plan.name}",
            opts=self._child,
        )
        return account.email

    def _make_policies(self) -> dict[str, pulumi.Output[str]]:
        """Declare a placement policy for each compact group. Returns the self links by group."""
        return {
            name: compute.ResourcePolicy(
                f"{self._plan.name}-{name}-compact",
                name=f"{self._plan.name}-{name}-compact",
                region=self._spec.region,
                group_placement_policy=compute.ResourcePolicyGroupPlacementPolicyArgs(collocation="COLLOCATED"),
                opts=self._child,
            ).self_link
            for name, group in self._plan.groups.items()
            if group.placement == "compact"
        }

    def _make_public_address(self) -> pulumi.Output[str]:
        name = f"{self._plan.head.name}-address"
        return compute.Address(name, name=name, region=self._spec.region, opts=self._child).address

    def _make_shared_storage(self) -> pulumi.Input[SharedFiles]:
        """Declare the shared storage. Returns the location of the shared files."""
        shared = self._plan.storage
        if shared.kind == "external":
            return SharedFiles(source=f"{shared.address}:{shared.path}", nfs="4.1")
        if shared.kind == "head_nfs":
            self._data_disk = data_disk(self._plan, self)
            return SharedFiles(disk=f"/dev/disk/by-id/google-{DATA_DISK}")
        return filestore_files(self._plan, self._networks, self)

    def _machine(self, host: HostPlan) -> compute.Instance:
        is_head = host.role is Role.HEAD
        args = MachineArgs(
            host=host,
            plan=self._plan,
            cards=cards(self._layout, host),
            subnets=self._networks.subnets,
            birth=self._user_data.apply(lambda render: render(host)),
            is_rolled=host.name in self._rolled,
            service_account=self._account,
            public_ip=self._public if is_head else None,
            placement_policy=self._policies.get(host.group or ""),
            data_disk=self._data_disk.self_link if self._data_disk is not None and is_head else None,
        )
        # The first boot downloads packages through Cloud NAT, but no input of the machine refers to Cloud NAT.
        return machine(args, pulumi.ResourceOptions(parent=self, depends_on=[self._networks.nat]))

    def _host(self, host: HostPlan, made: compute.Instance) -> Host:
        is_head, spec = host.role is Role.HEAD, self._spec
        address, port = ssh_address(self._plan, host, self._public, spec.iap_port)
        tunnelled = is_head and self._plan.access.via == "bastion"
        return Host(
            plan=host,
            address=address,
            port=port,
            tunnel=tunnel_command(made.name, spec.zone, spec.project) if tunnelled else None,
            user=ADMIN_USER,
            host_key=host_key(made, spec.project),
            machine_id=made.instance_id,
            image=image_below(made),
            data_disk=self._data_disk.disk_id if self._data_disk is not None and is_head else None,
            through_head=not is_head,
        )
