"""The doctor: every probe has a check, and every check tells a sick host from a healthy one by recorded words."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from jobs.doctor.checks import CHECKS, judge
from jobs.doctor.collect import probe_names, probe_script
from jobs.doctor.command import report
from jobs.doctor.findings import Examined, Finding
from jobs.doctor.reports import HostReport, parse_report, peer_lines
from jobs.facts import Cluster, Transport
from tests.jobs.doctor_words import CHRONY, FIRST, HEAD, ROW, SECOND, SICK, healthy


@pytest.fixture
def local(local: Cluster) -> Cluster:
    """The two workers, joined by InfiniBand."""
    return replace(local, nodes=tuple(replace(node, fabric="infiniband-ndr") for node in local.nodes))


def examined(cluster: Cluster, lines: Mapping[str, Sequence[str]]) -> Examined:
    return Examined(cluster=cluster, reports={name: parse_report(name, said) for name, said in lines.items()})


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


def test_without_a_scheduler_nobody_asks_for_slurm(local: Cluster) -> None:
    plain = replace(local, scheduler="none")
    words = ("munge", "slurm", "mariadb", "queue", "memlock")
    lines = {
        host: [line for line in said if not any(word in line for word in words)] for host, said in healthy().items()
    }
    for host in (FIRST, SECOND):
        lines[host].append(f"memlock\t{host}\tunlimited")
    findings = judge(examined(plain, lines))
    assert not any(findings.values())
    assert not {"munge", "queue"} & set(findings)
    assert {name for name, found in judge(examined(local, lines)).items() if found} == {"munge", "queue"}
    script = probe_script(plain, FIRST, "abcd")
    assert "\nscheduler=none\n" in script


def test_a_logins_limit_counts_where_ranks_come_by_ssh(local: Cluster) -> None:
    lines = {FIRST: [f"memlock\t{FIRST}\t8192"]}
    [found] = CHECKS["memlock"](examined(replace(local, scheduler="none"), lines))
    assert (found.node, "limits.d" in found.fix) == (FIRST, True)
    slow = replace(local, scheduler="none", nodes=tuple(replace(node, fabric="ethernet") for node in local.nodes))
    assert not list(CHECKS["memlock"](examined(slow, lines)))


def test_each_group_has_its_own_topology(local: Cluster) -> None:
    lines = {FIRST: [ROW], SECOND: ["topology\tGPU0\tX SYS"]}
    assert len(list(CHECKS["topology"](examined(local, lines)))) == 1
    other = replace(local, nodes=(local.nodes[0], replace(local.nodes[1], group="other")))
    assert not list(CHECKS["topology"](examined(other, lines)))


def test_docker_needs_the_toolkit_on_real_gpus_only(local: Cluster) -> None:
    lines = healthy()
    lines[FIRST].remove("containers\ttoolkit\tyes")
    assert not list(CHECKS["containers"](examined(local, lines)))
    real = replace(local, nodes=tuple(replace(node, gpu_type="a100") for node in local.nodes))
    [found] = CHECKS["containers"](examined(real, lines))
    assert (found.node, found.what) == (FIRST, "it has no NVIDIA container toolkit")


@pytest.mark.parametrize(
    ("lines_of_second", "what"),
    [
        (
            ["containers\treceiver\trunning"],
            "it has no NCCL plugin in /var/lib/tcpxo/lib64, its fabric is gpudirect-tcpxo",
        ),
        (["containers\tplugin\t/var/lib/tcpxo/lib64", "containers\treceiver\texited"], "its receive daemon is exited"),
        (["containers\tplugin\t/var/lib/tcpxo/lib64"], "its receive daemon is absent"),
    ],
)
def test_a_node_without_its_plugin_or_daemon_is_named(local: Cluster, lines_of_second: list[str], what: str) -> None:
    """NCCL would use plain TCP and report no error."""
    transport = {"gpu": Transport(library_path="/var/lib/tcpxo/lib64", mounts=())}
    nodes = tuple(replace(node, fabric="gpudirect-tcpxo") for node in local.nodes)
    lines = healthy()
    lines[FIRST] += ["containers\tplugin\t/var/lib/tcpxo/lib64", "containers\treceiver\trunning"]
    lines[SECOND] += lines_of_second
    [found] = CHECKS["containers"](examined(replace(local, nodes=nodes, transport=transport), lines))
    assert (found.node, found.what) == (SECOND, what)


def test_a_clock_that_timesyncd_keeps_is_right(local: Cluster) -> None:
    lines = healthy()
    lines[FIRST] = ["clock\tsynchronised\tyes" if said == CHRONY else said for said in lines[FIRST]]
    assert list(CHECKS["clock"](examined(local, lines))) == []


def test_open_kernel_modules_replace_peermem(local: Cluster) -> None:
    lines = healthy()
    lines[FIRST] = [said.replace("nvidia-peermem", "dma-buf") for said in lines[FIRST]]
    assert list(CHECKS["driver"](examined(local, lines))) == []


def test_a_storage_port_is_not_judged_with_those_for_collectives(local: Cluster) -> None:
    lines = healthy()
    storage = "infiniband\tmlx5_1/1\t1: DOWN\t40 Gb/sec (4X QDR)\tInfiniBand"
    lines[FIRST] += ["settings\tfabric\tNCCL_IB_HCA\t=mlx5_ib0", storage]
    assert list(CHECKS["infiniband"](examined(local, lines))) == []


def test_ports_of_roce_are_ethernet(local: Cluster) -> None:
    roce = replace(local, nodes=tuple(replace(node, fabric="roce") for node in local.nodes))
    lines = healthy()
    for name in (FIRST, SECOND):
        lines[name] = [said.replace("NDR)\tInfiniBand", "NDR)\tEthernet") for said in lines[name]]
        lines[name] += ["settings\tfabric\tNCCL_IB_HCA\t=mlx5_ib0"]
    assert list(CHECKS["infiniband"](examined(roce, lines))) == []
    lines[FIRST] = [said.replace("4: ACTIVE", "1: DOWN") for said in lines[FIRST]]
    assert [finding.node for finding in CHECKS["infiniband"](examined(roce, lines))] == [FIRST]
