"""The doctor: every probe has a check, and every check tells a sick host from a healthy one by recorded words."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence

import pytest

from jobs.doctor.checks import CHECKS, judge
from jobs.doctor.collect import probe_names, probe_script
from jobs.doctor.command import report
from jobs.doctor.findings import Examined, Finding
from jobs.doctor.reports import HostReport, parse_report, peer_lines
from jobs.facts import Cluster

HEAD, FIRST, SECOND = "yard-head", "yard-gpu-0", "yard-gpu-1"
BOOT = "8b169027-b633-4019-9fb9-af6189d6cf7d"
READY = json.dumps({"node": "x", "boot_id": BOOT, "state": "ready", "stage": ""})
RUNNING = json.dumps({"node": "x", "boot_id": BOOT, "state": "running", "stage": "70-slurm"})
NFS = "rw,noatime,vers=4.2,rsize=131072,wsize=131072,namlen=255,hard,proto=tcp,nconnect=4,timeo=600,retrans=2"
CHRONY = "clock\tchrony\t0.000012\tNormal"

Lines = dict[str, list[str]]


def healthy() -> Lines:
    """What the probes of three healthy hosts print; taken from real hosts, but for systemd's and NFS's words."""
    addresses = {HEAD: "10.77.0.4", FIRST: "10.77.2.1", SECOND: "10.77.2.2"}
    lines: Lines = {}
    for number, (host, address) in enumerate(addresses.items()):
        others = {name: ip for name, ip in addresses.items() if name != host}
        units = ("nfs-server", "mariadb", "slurmdbd", "slurmctld") if host == HEAD else ("slurmd",)
        lines[host] = [
            f"status\tboot_id\t{BOOT}",
            f"status\tjson\t{READY}",
            *(f"services\t{unit}\tactive" for unit in ("munge", "chrony", "ssh", *units)),
            *(f"names\t{name}\t{ip}" for name, ip in addresses.items()),
            "routes\tfabric\teth0",
            *(f"routes\t{ip}\teth0\t{address}" for ip in others.values()),
            f"tcp\tport\t4000{number}",
            *(f"tcp\t{name}\t0\ttrainyard" for name in others),
            f"munge\tcredential\tMUNGE:{host}:",
            "munge\tself\tSuccess (0)",
            *(f"munge\t{name}\tSuccess (0)" for name in others if HEAD in {host, name}),
            "nfs\twrite\t0\t",
            *(f"nfs\t{name}\t{name}" for name in addresses),
            CHRONY,
            f"clock\tnow\t1795246299.70{number}",
            "shm\t495000\t990000",
            f"gpus\t{0 if host == HEAD else 2}",
            "software\tpython\t3.13.5",
            f"software\ttorch\t{'absent' if host == HEAD else '2.6.0'}",
            "software\tslurm\tslurm-wlm 24.11.5",
        ]
        if host == HEAD:
            lines[host] += [f"queue\t{name}\tidle\tnone" for name in others]
            lines[host] += [f"memlock\t{name}\tunlimited" for name in others]
        else:
            lines[host] += [f"mounts\t{path}\tnfs4\t{NFS}" for path in ("/home", "/shared")]
    return lines


def examined(cluster: Cluster, lines: Mapping[str, Sequence[str]]) -> Examined:
    return Examined(cluster=cluster, reports={name: parse_report(name, said) for name, said in lines.items()})


Sickness = tuple[str, str, str, str, str]
SICK: dict[str, list[Sickness]] = {
    # probe: (host whose words differ, line of a healthy host, what it says instead, host to be named, words expected)
    "status": [
        (FIRST, f"status\tjson\t{READY}", f"status\tjson\t{RUNNING}", FIRST, "says running 70-slurm"),
        (FIRST, f"status\tboot_id\t{BOOT}", f"status\tboot_id\t{BOOT[::-1]}", FIRST, "nothing of this boot"),
        (HEAD, f"status\tjson\t{READY}", "", HEAD, "nothing of this boot"),
    ],
    "services": [
        (FIRST, "services\tslurmd\tactive", "services\tslurmd\tfailed", FIRST, "slurmd is failed"),
        (HEAD, "services\tslurmctld\tactive", "services\tslurmctld\tactivating", HEAD, "slurmctld is activating"),
    ],
    "names": [
        (SECOND, f"names\t{SECOND}\t10.77.2.2", f"names\t{SECOND}\t127.0.1.1", SECOND, "resolves to 127.0.1.1"),
        (HEAD, f"names\t{FIRST}\t10.77.2.1", "", HEAD, f"{FIRST} resolves to nothing"),
    ],
    "routes": [
        (FIRST, "routes\t10.77.2.2\teth0\t10.77.2.1", "routes\t10.77.2.2\tdocker0\t172.17.0.1", FIRST, "by docker0"),
        (FIRST, "routes\t10.77.0.4\teth0\t10.77.2.1", "", FIRST, "has no route"),
        (FIRST, "routes\tfabric\teth0", "routes\tfabric\teth1", FIRST, "not by eth1"),
    ],
    "tcp": [
        (FIRST, f"tcp\t{SECOND}\t0\ttrainyard", f"tcp\t{SECOND}\t124\tno answer within 8 s", FIRST, f"of {SECOND}: no"),
        (SECOND, f"tcp\t{HEAD}\t0\ttrainyard", "", SECOND, "it offered no port"),
    ],
    "munge": [
        (HEAD, f"munge\t{FIRST}\tSuccess (0)", f"munge\t{FIRST}\tunmunge: Error: Invalid credential", FIRST, "Invalid"),
        (SECOND, f"munge\t{HEAD}\tSuccess (0)", f"munge\t{HEAD}\tExpired credential (15)", SECOND, "Expired"),
        (
            FIRST,
            "munge\tself\tSuccess (0)",
            "munge\tself\tmunge: Error: Failed to access",
            FIRST,
            "does not work on it",
        ),
    ],
    "nfs": [
        (
            SECOND,
            "nfs\twrite\t0\t",
            "nfs\twrite\t1\tbash: line 1: /shared/x: Permission denied",
            SECOND,
            "cannot write",
        ),
        (FIRST, f"nfs\t{SECOND}\t{SECOND}", f"nfs\t{SECOND}\t", FIRST, f"cannot read what {SECOND} wrote"),
    ],
    "mounts": [
        (FIRST, f"mounts\t/shared\tnfs4\t{NFS}", "", FIRST, "/shared is not mounted"),
        (SECOND, f"mounts\t/home\tnfs4\t{NFS}", "mounts\t/home\tnfs4\trw,soft,vers=3", SECOND, "rw,soft,vers=3"),
        (SECOND, f"mounts\t/home\tnfs4\t{NFS}", "mounts\t/home\text4\trw", SECOND, "/home is not mounted"),
    ],
    "clock": [
        (FIRST, CHRONY, "clock\tchrony\t\t", FIRST, "not steered"),
        (FIRST, CHRONY, "clock\tchrony\t0.0\tNot synchronised", FIRST, "not steered"),
        (FIRST, CHRONY, "clock\tchrony\t-3.25\tNormal", FIRST, "off by -3.2 s"),
        (SECOND, "clock\tnow\t1795246299.702", "clock\tnow\t1795246699.702", SECOND, "head's by +400 s"),
    ],
    "shm": [(FIRST, "shm\t495000\t990000", "shm\t65536\t990000", FIRST, "64 MiB of 966 MiB")],
    "gpus": [(SECOND, "gpus\t2", "gpus\t1", SECOND, "1 GPUs answer, 2 are expected")],
    "software": [
        (
            HEAD,
            "software\tslurm\tslurm-wlm 24.11.5",
            "software\tslurm\tslurm-wlm 22.05.8",
            HEAD,
            "is slurm-wlm 22.05.8",
        ),
        (SECOND, "software\ttorch\t2.6.0", "software\ttorch\tabsent", SECOND, "torch is absent, elsewhere 2.6.0"),
    ],
    "memlock": [(HEAD, f"memlock\t{FIRST}\tunlimited", f"memlock\t{FIRST}\t8192", FIRST, "8192 KiB")],
    "queue": [
        (HEAD, f"queue\t{FIRST}\tidle\tnone", f"queue\t{FIRST}\tdown*\tNot responding", FIRST, "says down*"),
        (HEAD, f"queue\t{SECOND}\tidle\tnone", f"queue\t{SECOND}\tdrained\tKill task failed", SECOND, "says drained"),
        (HEAD, f"queue\t{SECOND}\tidle\tnone", "", SECOND, "unknown to Slurm"),
    ],
}


def test_every_probe_has_its_check_and_its_cases() -> None:
    assert set(probe_names()) | {"reach"} == set(CHECKS)
    assert set(probe_names()) == set(SICK)


@pytest.mark.parametrize("probe", sorted(CHECKS))
def test_healthy_hosts_pass(probe: str, local: Cluster) -> None:
    assert list(CHECKS[probe](examined(local, healthy()))) == []


CASES = [(probe, *case) for probe, cases in SICK.items() for case in cases]


@pytest.mark.parametrize(("probe", "host", "line", "instead", "named", "words"), CASES)
def test_a_sick_host_is_named_with_cause_and_fix(  # noqa: PLR0913, PLR0917  (the table's columns)
    probe: str, host: str, line: str, instead: str, named: str, words: str, local: Cluster
) -> None:
    lines = healthy()
    assert line in lines[host], "the case must change what a healthy host says"
    lines[host] = [instead if said == line else said for said in lines[host] if said != line or instead]
    found = list(CHECKS[probe](examined(local, lines)))
    assert {finding.node for finding in found} == {named}
    assert words in found[0].what
    assert all(finding.cause and finding.fix for finding in found)


def test_a_wrong_munge_key_is_said_to_be_one(local: Cluster) -> None:
    lines = healthy()
    wrong = "unmunge: Error: Invalid credential"
    lines[HEAD] = [said.replace(f"{FIRST}\tSuccess (0)", f"{FIRST}\t{wrong}") for said in lines[HEAD]]
    lines[FIRST] = [said.replace(f"{HEAD}\tSuccess (0)", f"{HEAD}\t{wrong}") for said in lines[FIRST]]
    lines[HEAD] = [
        said.replace(f"queue\t{FIRST}\tidle\tnone", f"queue\t{FIRST}\tdown*\tNot responding") for said in lines[HEAD]
    ]
    findings = judge(examined(local, lines))
    [munge] = findings["munge"]
    assert (munge.node, munge.cause) == (
        FIRST,
        f"the munge key on {FIRST} is not the cluster's; slurmd there cannot register",
    )
    assert "trainyard-bootstrap" in munge.fix
    assert [finding.node for finding in findings["queue"]] == [FIRST]
    assert list(findings).index("munge") < list(findings).index("queue")
    assert not any(found for name, found in findings.items() if name not in {"munge", "queue"})


def test_a_silent_host_is_one_finding(local: Cluster) -> None:
    cluster = examined(local, healthy())
    reports = {**cluster.reports, SECOND: HostReport(name=SECOND, trouble="ssh: connect to host x: Connection refused")}
    findings = judge(Examined(cluster=local, reports=reports))
    assert [name for name, found in findings.items() if found] == ["reach"]
    assert findings["reach"][0].cause.endswith("Connection refused")


def test_peers_are_told_what_concerns_them() -> None:
    reports = {name: parse_report(name, lines) for name, lines in healthy().items()}
    assert peer_lines(FIRST, HEAD, reports) == [
        f"peer tcp {HEAD} 40000",
        f"peer nfs {HEAD} written",
        f"peer munge {HEAD} MUNGE:{HEAD}:",
        f"peer tcp {SECOND} 40002",
        f"peer nfs {SECOND} written",
    ]
    assert f"peer munge {SECOND} MUNGE:{SECOND}:" in peer_lines(HEAD, HEAD, reports)


def test_the_script_for_a_host_is_whole(local: Cluster) -> None:
    script = probe_script(local, FIRST, "abcd")
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert script.startswith(f"self={FIRST}\nself_ip=10.77.2.1\nhead={HEAD}\n")
    assert all(f"{probe}_facts()" in script for probe in probe_names())
    # It is handed to bash as one argument.
    assert len(script) < 128 * 1024


def test_the_report_names_what_where_why_and_how() -> None:
    finding = Finding(probe="names", node=FIRST, what="it is wrong", cause="why", fix="how")
    text = report({"names": [finding], "tcp": []}, 3, 2.4)
    assert text.splitlines() == [
        "FAIL  names",
        f"      {FIRST}: it is wrong",
        "        cause: why",
        "        fix:   how",
        "ok    tcp",
        "3 hosts, 2 checks, 2 s: 1 finding",
    ]
