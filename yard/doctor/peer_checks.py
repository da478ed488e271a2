"""Checks of the connections between hosts: names, routes, TCP ports, munge and shared files."""

from __future__ import annotations

from collections.abc import Iterator

from yard.doctor.findings import Examined, HostProblem, problem

_DECODED = ("Success", "Replayed")
"""Both results prove that the keys match, because munge decodes a credential before it detects a replay."""


def check_reach(examined: Examined) -> Iterator[HostProblem]:
    """Check that every host can be examined over SSH as the admin."""
    for report in examined.reports.values():
        if report.error:
            start = examined.cluster.way_to_start(examined.stack)
            # While a local machine is on, QEMU listens on its SSH port.
            if examined.cluster.provider == "local" and "Connection refused" in report.error:
                yield problem(report.name, "stopped", start=start)
                continue
            is_repaired = examined.has_slurm and report.name != examined.cluster.head.name
            repair = "; `yard heal` shows the next repair step" if is_repaired else ""
            yield problem(report.name, "unreachable", error=report.error, start=start, repair=repair)


def check_names(examined: Examined) -> Iterator[HostProblem]:
    """Check that every host's name resolves to its private address on all hosts."""
    for report in examined.answered:
        for name, address in examined.cluster.addresses.items():
            found = report.value("names", name) or "no address"
            if found != address:
                text = "name-loopback" if found.startswith("127.") else "name"
                yield problem(report.name, text, name=name, found=found, address=address)


def check_routes(examined: Examined) -> Iterator[HostProblem]:
    """Check that routes to other hosts use the host's private address and the interface that jobs use."""
    addresses = examined.cluster.addresses
    for report in examined.answered:
        fabric, own = report.value("routes", "fabric"), addresses[report.name]
        routes = {row[0]: row[1:] for row in report.of("routes")}
        for name, address in addresses.items():
            device, source = routes.get(address, ("", ""))
            if name == report.name or (device, source) == (fabric, own):
                continue
            found = f"uses {device} from {source}" if device else "has no route"
            interface = fabric or "a known interface"
            yield problem(report.name, "route", name=name, found=found, interface=interface, address=own)


def check_tcp(examined: Examined) -> Iterator[HostProblem]:
    """Check that every host can connect to a random TCP port on every other host."""
    for report in examined.answered:
        tried = {row[0]: row[1:] for row in report.of("tcp")}
        for peer in examined.answered:
            code, message = tried.get(peer.name, ("1", "no port was reported"))
            if peer is not report and (code, message) != ("0", "trainyard"):
                yield problem(report.name, "tcp", peer=peer.name, message=message)


def check_munge(examined: Examined) -> Iterator[HostProblem]:
    """Check that munge works on every host, and that the head and each worker accept each other's credentials."""
    head = examined.head
    # A head whose own munge is broken would reject every credential.
    if head is not None and not head.value("munge", "self").startswith(_DECODED):
        head = None
    for report in examined.answered:
        own = report.value("munge", "self")
        if not own.startswith(_DECODED):
            yield problem(report.name, "munge", message=own or "no output")
        elif head is not None and report is not head:
            results = (head.value("munge", report.name), report.value("munge", head.name))
            rejected = next((result for result in results if not result.startswith(_DECODED)), None)
            if rejected is not None:
                text = "munge-clock" if "Expired" in rejected or "Rewound" in rejected else "munge-key"
                yield problem(report.name, text, message=rejected or "no output")


def check_nfs(examined: Examined) -> Iterator[HostProblem]:
    """Check that every host can read the files that other hosts write to the shared file system."""
    shared = examined.cluster.shared_path
    writers = [report.name for report in examined.answered if report.value("nfs", "write") == "0"]
    for report in examined.answered:
        rows = {row[0]: row[1:] for row in report.of("nfs")}
        if report.name not in writers:
            yield problem(report.name, "nfs-write", shared=shared, message=rows["write"][1])
            continue
        for peer in writers:
            if rows.get(peer) != (peer,):
                yield problem(report.name, "nfs-read", shared=shared, peer=peer)
