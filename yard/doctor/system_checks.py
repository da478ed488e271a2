"""Checks for network interfaces and NCCL settings."""

from __future__ import annotations

from collections.abc import Iterator

from yard.doctor.findings import Examined, HostProblem, problem

_SKIPPED = ("docker", "lo")
"""Prefixes of interfaces that NCCL ignores by default. NCCL does not ignore veth, bridge or QEMU interfaces."""


def check_interfaces(examined: Examined) -> Iterator[HostProblem]:
    """fabric.env contains the interface with the private address, so that NCCL and Gloo do not choose a different
    interface.
    """
    for report in examined.answered:
        address = examined.cluster.addresses[report.name]
        devices = [row[1:] for row in report.of("interfaces") if row[0] == "device"]
        ours = next((device for device, found in devices if found == address), None)
        if ours is None:
            yield problem(report.name, "interface-address", address=address)
            continue
        names = [device for device, _ in devices if device != ours and not device.startswith(_SKIPPED)]
        others = f"; other interfaces: {', '.join(names)}" if names else ""
        node = examined.nodes.get(report.name)
        # Stage 40-network explains the difference.
        exact = ours if node and node.fabric.startswith("gpudirect-") else f"={ours}"
        for key, expected in (("NCCL_SOCKET_IFNAME", exact), ("GLOO_SOCKET_IFNAME", ours)):
            found = report.value("interfaces", key)
            if found != expected:
                yield problem(report.name, "interface-setting", key=key, found=found, expected=expected, others=others)


def check_settings(examined: Examined) -> Iterator[HostProblem]:
    """No other file contradicts the cluster's NCCL settings."""
    for report in examined.answered:
        node = examined.nodes.get(report.name)
        settings = dict(examined.cluster.env.get(node.group, {})) if node else {}
        settings |= {row[1]: row[2] for row in report.of("settings") if row[0] == "fabric"}
        for _, file, key, value in (row for row in report.of("settings") if row[0] == "file"):
            expected = settings.get(key, value)
            if value != expected:
                yield problem(report.name, "setting", file=file, key=key, found=value, expected=expected)
