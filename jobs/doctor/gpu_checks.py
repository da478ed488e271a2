"""GPUs and what joins them: how many answer, their driver, their faults, their links and the RDMA cards' ports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from jobs.doctor.findings import Examined, Finding, odd_ones, rdma_layer
from jobs.doctor.reports import HostReport

_FABRIC_MANAGER = "`yard ssh {node} --admin -- sudo systemctl restart nvidia-fabricmanager`"
_PORT_FIELDS = 3


def check_gpus(examined: Examined) -> Iterator[Finding]:
    """As many GPUs answer as the outputs promise."""
    expected = {node.name: node.gpus for node in examined.cluster.nodes}
    for report in examined.workers:
        found = int(next(iter(report.of("gpus")), ("0",))[0] or 0)
        if found != expected[report.name]:
            yield Finding(
                probe="gpus",
                node=report.name,
                what=f"{found} GPUs answer, {expected[report.name]} are expected",
                cause="a GPU has fallen off the bus, or the driver is not loaded",
                fix=f"look for Xid in `dmesg` on {report.name}; reboot it, and replace it when that does not help",
            )


def check_driver(examined: Examined) -> Iterator[Finding]:
    """One driver on all workers; GPUDirect RDMA on an RDMA fabric; with NVSwitch, a fabric manager of that version."""
    versions = {report.name: report.value("driver", "version") for report in examined.workers}
    for name, version, usual in odd_ones({name: version for name, version in versions.items() if version}):
        yield Finding(
            probe="driver",
            node=name,
            what=f"its driver is {version}, elsewhere {usual}",
            cause="it was made from another image, or its packages were upgraded",
            fix=f"replace the node by one from the same image as the others, or install driver {usual}",
        )
    for report in examined.workers:
        managed, manager = report.value("driver", "managed"), report.value("driver", "manager")
        if managed and manager != versions[report.name]:
            yield Finding(
                probe="driver",
                node=report.name,
                what=f"fabric manager {manager or 'absent'} and driver {versions[report.name]} differ",
                cause="one of the two was upgraded alone; GPUs behind NVSwitch then refuse work (error 802)",
                fix=f"install nvidia-fabricmanager {versions[report.name]} there",
            )
        elif managed and managed != "active":
            yield Finding(
                probe="driver",
                node=report.name,
                what=f"its fabric manager is {managed}",
                cause="GPUs behind NVSwitch refuse work without it (error 802: system not yet initialized)",
                fix=_FABRIC_MANAGER.format(node=report.name),
            )

    yield from _gpu_memory_reached(examined)


def check_faults(examined: Examined) -> Iterator[Finding]:
    """No GPU reports memory errors, rows waiting for a reset, or Xid events."""
    for report in examined.workers:
        for row in report.of("faults"):
            if row[0] == "xid":
                what, cause = f"the kernel logged {row[1]}", "a GPU, its link or the program on it failed"
                fix = "look the Xid's number up in NVIDIA's catalogue; drain the node and reboot it"
            elif row[2].isdigit() and int(row[2]):
                what = f"GPU {row[1]} had {row[2]} memory errors that could not be corrected"
                cause, fix = "its memory is failing", "drain the node and reset the GPU; replace it when they come back"
            elif row[3].lower() in {"yes", "1"}:
                what, cause = (
                    f"GPU {row[1]} has memory rows to remap",
                    "they are replaced by spare ones at a reset only",
                )
                fix = "drain the node and reboot it"
            else:
                continue
            yield Finding(probe="faults", node=report.name, what=what, cause=cause, fix=f"on {report.name}: {fix}")


def check_topology(examined: Examined) -> Iterator[Finding]:
    """GPUs are joined alike on all nodes of a group."""
    group_of = {node.name: node.group for node in examined.cluster.nodes}
    for group in dict.fromkeys(group_of.values()):
        links = {
            report.name: "; ".join(" ".join(row) for row in report.of("topology"))
            for report in examined.workers
            if group_of[report.name] == group
        }
        for name, found, usual in odd_ones(links):
            ours, theirs = found.split("; "), usual.split("; ")
            row = next((pair for pair in zip(ours, theirs, strict=False) if pair[0] != pair[1]), (found, usual))
            yield Finding(
                probe="topology",
                node=name,
                what=f"its GPUs are joined otherwise than elsewhere: '{row[0] or 'nothing'}', not '{row[1]}'",
                cause="an NVLink is down, or the machine is of another kind",
                fix=f"`nvidia-smi nvlink --status` on {name}; replace the node when a link stays down",
            )


def _gpu_memory_reached(examined: Examined) -> Iterator[Finding]:
    """On an RDMA fabric the cards reach GPU memory, by nvidia-peermem or DMA-BUF, and not through the processor."""
    fabric = {node.name: node.fabric for node in examined.cluster.nodes}
    for report in examined.workers:
        has_driver, direct = report.value("driver", "version"), report.value("driver", "direct")
        if has_driver and not direct and rdma_layer(fabric[report.name]):
            yield Finding(
                probe="driver",
                node=report.name,
                what="its RDMA cards cannot reach GPU memory",
                cause="nvidia-peermem is not loaded, and the driver is not the open one, which has DMA-BUF",
                fix=f"`sudo modprobe nvidia-peermem` on {report.name}, or install the open kernel modules",
            )


def check_infiniband(examined: Examined) -> Iterator[Finding]:
    """On an RDMA fabric there are ports, they are up, and as fast as those of the other nodes."""
    fabric = {node.name: node.fabric for node in examined.cluster.nodes}
    ports = {
        report.name: _rdma_ports(report, layer)
        for report in examined.workers
        if (layer := rdma_layer(fabric[report.name]))
    }
    for name, found in ports.items():
        if not found:
            yield Finding(
                probe="infiniband",
                node=name,
                what=f"it has no {rdma_layer(fabric[name])} port, its fabric is {fabric[name]}",
                cause="the cards' driver is not loaded, or the machine has none",
                fix=f"`dmesg | grep mlx5` on {name}; use an image with the cards' driver",
            )
        for port, facts in found.items():
            if not facts[0].endswith("ACTIVE"):
                yield Finding(
                    probe="infiniband",
                    node=name,
                    what=f"port {port} is {facts[0].partition(': ')[2] or facts[0]}",
                    cause="no cable or switch port, or no subnet manager has configured it",
                    fix=f"`ibstat` on {name}; ask who runs the fabric, and drain the node meanwhile",
                )
    yield from _unequal_rates(ports)


def _rdma_ports(report: HostReport, layer: str) -> dict[str, tuple[str, ...]]:
    """Return (state, rate, link layer) of each port for collectives: those of NCCL_IB_HCA, where it has names."""
    settings = {row[1]: row[2] for row in report.of("settings") if row[0] == "fabric"}
    named = settings.get("NCCL_IB_HCA", "")
    listed = named.removeprefix("=").split(",") if named.startswith("=") else []
    return {
        row[0]: row[1:]
        for row in report.of("infiniband")
        if len(row) > _PORT_FIELDS and row[3] == layer and (not listed or row[0].partition("/")[0] in listed)
    }


def _unequal_rates(ports: Mapping[str, Mapping[str, tuple[str, ...]]]) -> Iterator[Finding]:
    rates = {}
    for name, found in ports.items():
        rates[name] = ", ".join(sorted(facts[1] for facts in found.values() if facts[0].endswith("ACTIVE")))
    for name, rate, usual in odd_ones({name: rate for name, rate in rates.items() if rate}):
        yield Finding(
            probe="infiniband",
            node=name,
            what=f"its ports run at {rate}, elsewhere {usual}",
            cause="a port has trained down (a bad cable), or one is missing",
            fix=f"`ibstat` and `ibdiagnet` on {name}; have the cable replaced, drain the node meanwhile",
        )
