"""Room on disks, the interfaces that jobs bind, and settings left over from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

from jobs.doctor.findings import Examined, Finding

_LEAST_MIB = 256
_LEAST_SHARE = 0.02
_SKIPPED = ("docker", "lo")
"""What NCCL leaves out by itself; a veth, a bridge or a virtual network of QEMU it would take."""


def check_disk(examined: Examined) -> Iterator[Finding]:
    """There is room for files and for their names where jobs write."""
    for report in examined.answered:
        for row in report.of("disk"):
            path, (size, free, files, spare) = row[0], (int(field) for field in row[1:5])
            if free < max(_LEAST_MIB, size * _LEAST_SHARE):
                what, cause = f"{path} has {free} of {size} MiB left", "checkpoints and logs fill it"
            elif files and spare < files * _LEAST_SHARE:
                what, cause = f"{path} has {spare} of {files} file names left", "many small files fill it"
            else:
                continue
            fix = f"`yard ssh {report.name} --admin -- sudo du -xh -d 2 {path} | sort -h | tail` shows what to remove"
            yield Finding(probe="disk", node=report.name, what=what, cause=cause, fix=fix)


def check_interfaces(examined: Examined) -> Iterator[Finding]:
    """Jobs are told the interface of the private address, exactly: NCCL and Gloo would guess otherwise."""
    addresses = examined.cluster.addresses
    for report in examined.answered:
        devices = [row[1:3] for row in report.of("interfaces") if row[0] == "device"]
        ours = next((device for device, address in devices if address == addresses[report.name]), "")
        others = [device for device, _ in devices if device != ours and not device.startswith(_SKIPPED)]
        told = {key: report.value("interfaces", key) for key in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")}
        fix = f"`yard ssh {report.name} --admin -- sudo systemctl restart trainyard-bootstrap` writes fabric.env again"
        if not ours:
            what = f"no interface has the private address {addresses[report.name]}"
            cause = "the network card was replaced or renamed, or the address was taken away"
            yield Finding(probe="interfaces", node=report.name, what=what, cause=cause, fix=fix)
            continue
        for key, value in told.items():
            wanted = {"NCCL_SOCKET_IFNAME": f"={ours}"}.get(key, ours)
            if value == wanted:
                continue
            seen = f"; {', '.join(others)} would match or be tried, too" if others else ""
            yield Finding(
                probe="interfaces",
                node=report.name,
                what=f"{key} is '{value}', not '{wanted}'{seen}",
                cause="ranks would offer one another an address that leads nowhere, and hang at their start",
                fix=fix,
            )


def check_settings(examined: Examined) -> Iterator[Finding]:
    """No NCCL setting elsewhere contradicts those of this cluster."""
    group_of = {node.name: node.group for node in examined.cluster.nodes}
    for report in examined.answered:
        env = examined.cluster.env.get(group_of.get(report.name, ""), {})
        fabric = {row[1]: row[2] for row in report.of("settings") if row[0] == "fabric"}
        ours = {**env, **fabric}
        for row in report.of("settings"):
            if row[0] != "file" or ours.get(row[2], row[3]) == row[3]:
                continue
            yield Finding(
                probe="settings",
                node=report.name,
                what=f"{row[1]} sets {row[2]}={row[3]}, the cluster {ours[row[2]]}",
                cause="it was carried over from another cluster or image, and wins where a job drops its environment",
                fix=f"remove the line from {row[1]} on {report.name}",
            )
