"""What hosts tell of one another, judged: names, routes, ports, keys, shared files."""

from __future__ import annotations

from collections.abc import Iterator

from jobs.doctor.findings import Examined, Finding

_BOOTSTRAP = "`yard ssh {node} --admin -- sudo systemctl restart trainyard-bootstrap` {does}"
_DECODED = ("Success", "Replayed")
"""A credential that was seen before was decoded, too, and so came from the same key."""


def check_reach(examined: Examined) -> Iterator[Finding]:
    """Every host answered over ssh, as the admin."""
    for report in examined.reports.values():
        if report.trouble:
            yield Finding(
                probe="reach",
                node=report.name,
                what="it does not answer",
                cause=report.trouble,
                fix="start it if it has stopped (Azure: `az vm start`; elsewhere: `pulumi up --refresh`); its console "
                "log shows why a machine hangs",
            )


def check_names(examined: Examined) -> Iterator[Finding]:
    """Each host's name means its private address, on every host."""
    for report in examined.answered:
        found = {name: address for name, address, *_ in report.of("names")}
        for name, address in examined.cluster.addresses.items():
            if found.get(name) == address:
                continue
            seen = found.get(name, "nothing")
            loopback = seen.startswith("127.")
            yield Finding(
                probe="names",
                node=report.name,
                what=f"{name} resolves to {seen}, not {address}",
                cause="torch and MPI would meet on loopback" if loopback else "/etc/hosts was changed there",
                fix=_BOOTSTRAP.format(node=report.name, does="writes /etc/hosts again"),
            )


def check_routes(examined: Examined) -> Iterator[Finding]:
    """The way to every host starts at the private address, on the interface that jobs are told to use."""
    addresses = examined.cluster.addresses
    for report in examined.answered:
        fabric = report.value("routes", "fabric")
        ways = {row[0]: row[1:] for row in report.of("routes") if row[0] != "fabric"}
        for name, address in addresses.items():
            if name == report.name:
                continue
            device, source = (*ways.get(address, ()), "", "")[:2]
            if device == fabric and source == addresses[report.name]:
                continue
            way = f"goes by {device} from {source}" if device else "has no route"
            yield Finding(
                probe="routes",
                node=report.name,
                what=f"traffic to {name} {way}, not by {fabric or 'a known interface'} from {addresses[report.name]}",
                cause="another network or a missing address stands in the way; NCCL and Gloo would bind the wrong one",
                fix=f"compare `ip -4 addr` and `ip -4 route` on {report.name} with another node; "
                + _BOOTSTRAP.format(node=report.name, does="finds the interface again"),
            )


def check_tcp(examined: Examined) -> Iterator[Finding]:
    """Each host can connect to a random port of each other."""
    for report in examined.answered:
        tried = {row[0]: row[1:] for row in report.of("tcp") if row[0] != "port"}
        for peer in examined.answered:
            if peer is report:
                continue
            code, said = (*tried.get(peer.name, ("1", "it offered no port")), "")[:2]
            if code == "0" and said == "trainyard":
                continue
            yield Finding(
                probe="tcp",
                node=report.name,
                what=f"cannot connect to a random port of {peer.name}: {said}",
                cause="a firewall stands between them; every rank opens random ports to every other",
                fix=f"allow all TCP between the nodes; look at `nft list ruleset` on {peer.name} and {report.name}",
            )


def check_munge(examined: Examined) -> Iterator[Finding]:
    """Each host's munge works, and the head and each worker believe one another."""
    head = examined.head
    for report in examined.answered:
        own = report.value("munge", "self")
        if not own.startswith(_DECODED):
            yield Finding(
                probe="munge",
                node=report.name,
                what=f"munge does not work on it: {own or 'no answer'}",
                cause="munged is down, or its key is unreadable",
                fix=_BOOTSTRAP.format(node=report.name, does="installs the key and starts munge"),
            )
        elif head is not None and report is not head:
            yield from _munge_between(report.name, head.value("munge", report.name), report.value("munge", head.name))


def _munge_between(node: str, head_says: str, node_says: str) -> Iterator[Finding]:
    if head_says.startswith(_DECODED) and node_says.startswith(_DECODED):
        return
    said = node_says if head_says.startswith(_DECODED) else head_says
    if any(word in said for word in ("Expired", "Rewound")):
        cause = "their clocks differ by more than 300 s"
        fix = f"`yard ssh {node} --admin -- sudo chronyc makestep`"
    else:
        cause = f"the munge key on {node} is not the cluster's; slurmd there cannot register"
        fix = _BOOTSTRAP.format(node=node, does="installs the cluster's key again")
    what = f"the head and {node} do not believe one another: {said or 'no answer'}"
    yield Finding(probe="munge", node=node, what=what, cause=cause, fix=fix)


def check_nfs(examined: Examined) -> Iterator[Finding]:
    """What each host writes on the shared file system, every other one reads."""
    shared = examined.cluster.shared_path
    for report in examined.answered:
        code, said = next((row[1:] for row in report.of("nfs") if row[0] == "write"), ("1", "no answer"))
        if code != "0":
            yield Finding(
                probe="nfs",
                node=report.name,
                what=f"the job user cannot write on {shared}: {said}",
                cause="the share is not mounted, is full, or belongs to somebody else",
                fix=f"`df {shared}` and `ls -ld {shared}/jobs` on {report.name}; the folder belongs to the job user",
            )
            continue
        read = {row[0]: row[1] for row in report.of("nfs") if row[0] != "write"}
        for peer in examined.answered:
            if peer.value("nfs", "write") == "0" and read.get(peer.name) != peer.name:
                yield Finding(
                    probe="nfs",
                    node=report.name,
                    what=f"cannot read what {peer.name} wrote on {shared}",
                    cause="one of the two has something else mounted there than the head's share",
                    fix=f"compare `findmnt {shared}` on both; the wrong one needs its mount unit started again",
                )
