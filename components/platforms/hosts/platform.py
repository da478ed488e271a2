"""HostsPlatform configures existing hosts as cluster nodes over SSH. `destroy` restores their earlier state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pulumi
from pulumi_command import remote

from components.node.parameters import SharedFiles, birth_env
from components.node.user_data import ADMIN_USER
from components.plan.plan import HostPlan, Role
from components.platforms.base import Host, Platform, PlatformArgs
from components.platforms.hosts.connect import route
from components.platforms.hosts.scripts import (
    AS_ROOT,
    GIVE_BACK,
    SharedFolder,
    bring_up_script,
    lease_script,
    reach_script,
    survey_script,
)
from components.platforms.hosts.spec import HostsSpec


class HostsPlatform(Platform):
    """Four resources for each host: a survey, a connection test, a lease and the bring-up.

    The survey and the connection test do not change the host. The lease records what the bring-up will change, and
    deleting the lease restores the host.
    """

    def __init__(self, name: str, args: PlatformArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(name, args, opts)
        self._name, self._args = name, args
        self._spec = args.plan.platform_spec(HostsSpec)
        storage = args.plan.storage
        required_gib = storage.size_gib if "size_gib" in storage.model_fields_set else 0
        self._shared = SharedFolder(path=storage.path or "", gib=required_gib)
        self._routes = {host.name: route(self._spec, host.name) for host in args.plan.hosts}
        # All surveys run before any lease, so that no host is changed if any host is unsuitable.
        surveys = [survey(host) for survey in (self._survey, self._reach) for host in args.plan.hosts]
        # `destroy` restores the workers before the head, because they mount files from the head.
        head, *workers = args.plan.hosts
        head_lease = self._lease(head, surveys)
        leases = [head_lease, *(self._lease(worker, [*surveys, head_lease]) for worker in workers)]
        self.shared = SharedFiles(folder=self._shared.path)
        self.hosts = [self._bring_up(host, lease) for host, lease in zip(args.plan.hosts, leases, strict=True)]
        self.register_outputs({})

    def _survey(self, host: HostPlan) -> remote.Command:
        interface = self._spec.host(host.name).interface
        return self._command(host, "survey", survey_script(self._args.plan, host, interface, self._shared))

    def _reach(self, host: HostPlan) -> remote.Command:
        """Test the connections once before the lease. The test does not run again when hosts join or leave later."""
        once = pulumi.ResourceOptions(ignore_changes=["stdin"])
        return self._command(host, "reach", reach_script(self._args.plan, host), once)

    def _lease(self, host: HostPlan, after: Sequence[remote.Command]) -> remote.Command:
        """Begin the lease. A changed script updates the resource, because a replacement would end the new lease: Pulumi
        deletes the old resource after it has created the new one."""
        plan, keep, shared = self._args.plan, self._spec.keep_files, self._shared
        script = self._args.access.apply(lambda keys: lease_script(plan, host, keys, keep_files=keep, shared=shared))
        return self._command(host, "lease", script, pulumi.ResourceOptions(depends_on=list(after)), delete=GIVE_BACK)

    def _bring_up(self, host: HostPlan, lease: remote.Command) -> Host:
        script = bring_up_script(self._args.plan, host)
        # Later versions of the files arrive in the bundle. The lease triggers the command, because a host with a new
        # lease has none of the files.
        after = pulumi.ResourceOptions(depends_on=[lease], ignore_changes=["stdin"])
        triggers = [lease.stdout, birth_env(self._args.plan, host)]
        files = self._command(host, "files", script, after, triggers=triggers)
        entry, route = self._spec.host(host.name), self._routes[host.name]
        return Host(
            plan=host,
            address=entry.address,
            port=entry.port,
            user=ADMIN_USER,
            host_key=pulumi.Output.from_input(entry.host_key or ""),
            host_key_declared=True,
            machine_id=files.stdout,
            through_head=host.role is Role.WORKER and entry.proxy_jump is not None,
            proxy=route.proxy,
            proxy_jump=route.proxy_jump,
        )

    def _command(
        self,
        host: HostPlan,
        name: str,
        script: pulumi.Input[str],
        opts: pulumi.ResourceOptions | None = None,
        **inputs: Any,
    ) -> remote.Command:
        return remote.Command(
            f"{self._name}-{host.name}-{name}",
            connection=self._routes[host.name].connection,
            create=AS_ROOT,
            stdin=script,
            add_previous_output_in_env=False,
            opts=pulumi.ResourceOptions.merge(pulumi.ResourceOptions(parent=self), opts),
            **inputs,
        )
