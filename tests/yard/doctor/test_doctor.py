"""The checks in `yard doctor` with recorded probe output."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.yard.doctor.doctor_samples import CHRONY, FAULTS, FIRST, HEAD, RAN, ROW, SECOND, healthy
from trainyard.outputs import Cluster, Transport
from yard.doctor import findings
from yard.doctor.checks import CHECKS, judge, report
from yard.doctor.collect import probe_names, probe_script
from yard.doctor.findings import Examined, HostProblem, HostReport, peer_lines


@pytest.fixture
def local(local: Cluster) -> Cluster:
    """A cluster with two workers that have an InfiniBand fabric."""
    return replace(local, nodes=tuple(replace(node, fabric="infiniband-ndr") for node in local.nodes))


def parse_report(name: str, lines: Iterable[str]) -> HostReport:
    report = HostReport(name=name)
    for line in lines:
        report.add(line)
    return report


def examined(cluster: Cluster, lines: Mapping[str, Sequence[str]]) -> Examined:
    return Examined(cluster=cluster, reports={name: parse_report(name, output) for name, output in lines.items()})


def test_every_probe_has_a_check_and_test_cases() -> None:
    assert set(probe_names()) | {"reach"} == set(CHECKS)
    assert set(probe_names()) == set(FAULTS)


@pytest.mark.parametrize("probe", sorted(CHECKS))
def test_healthy_hosts_pass(probe: str, local: Cluster) -> None:
    assert list(CHECKS[probe](examined(local, healthy()))) == []


def test_every_problem_text_is_used_by_a_check() -> None:
    files = Path(findings.__file__).parent
    used = set(re.findall(r'"([a-z-]+)"', "".join(file.read_text() for file in files.glob("*.py"))))
    texts = yaml.safe_load((files / "problems.yaml").read_text())
    assert set(texts) <= used
    assert {tuple(text) for text in texts.values()} == {("what", "cause", "fix")}


CASES = [(probe, *case) for probe, cases in FAULTS.items() for case in cases]


@pytest.mark.parametrize(("probe", "host", "line", "replacement", "reported", "text"), CASES)
def test_a_fault_is_reported_with_host_cause_and_fix(  # noqa: PLR0913, PLR0917  (the table's columns)
    probe: str, host: str, line: str, replacement: str, reported: str, text: str, local: Cluster
) -> None:
    lines = healthy()
    assert line in lines[host], "the case must replace a line from a healthy host"
    lines[host] = [replacement if old == line else old for old in lines[host] if old != line or replacement]
    found = list(CHECKS[probe](examined(local, lines)))
    assert {finding.node for finding in found} == {reported}
    assert text in found[0].what
    assert all(finding.cause and finding.fix for finding in found)


def test_texts_of_a_health_check_come_from_the_host(local: Cluster) -> None:
    lines = healthy()
    lines[SECOND].append("health\tgpu-count\tfatal\t1 of 2 GPUs work\ta GPU is lost\treboot {host}")
    assert judge(examined(local, lines))["health"] == [
        HostProblem(SECOND, "gpu-count: 1 of 2 GPUs work", "a GPU is lost", f"reboot {SECOND}")
    ]


def test_a_wrong_munge_key_is_reported_as_the_cause(local: Cluster) -> None:
    lines = healthy()
    wrong = "unmunge: Error: Invalid credential"
    lines[HEAD] = [line.replace(f"{FIRST}\tSuccess (0)", f"{FIRST}\t{wrong}") for line in lines[HEAD]]
    lines[FIRST] = [line.replace(f"{HEAD}\tSuccess (0)", f"{HEAD}\t{wrong}") for line in lines[FIRST]]
    lines[HEAD] = [
        line.replace(f"queue\t{FIRST}\tidle\tnone", f"queue\t{FIRST}\tdown*\tNot responding") for line in lines[HEAD]
    ]
    findings = judge(examined(local, lines))
    [munge] = findings["munge"]
    assert (munge.node, munge.cause) == (
        FIRST,
        f"the munge key on {FIRST} differs from the key on the head, so slurmd cannot register",
    )
    assert "trainyard-bootstrap" in munge.fix
    assert not any(found for name, found in findings.items() if name != "munge")


STOPPED = {
    "munge\tself\tSuccess (0)": "munge\tself\tunmunge: Error: Failed to access socket",
    "services\tmunge\tactive": "services\tmunge\tinactive",
    "services\tslurmd\tactive": "services\tslurmd\tfailed",
    RAN: "health\tmunge\tfatal\tmunge does not work\tcause\tfix",
}
"""Changed lines of a host on which munge was stopped."""


@pytest.mark.parametrize("host", [HEAD, FIRST])
def test_a_stopped_munge_gives_one_message(host: str, local: Cluster) -> None:
    lines = healthy()
    lines[host] = [STOPPED.get(line, line) for line in lines[host]] + [RAN]
    out = [FIRST, SECOND] if host == HEAD else [host]
    for name in out:
        line = f"queue\t{name}\tdown*\tNot responding"
        lines[HEAD] = [line if old == f"queue\t{name}\tidle\tnone" else old for old in lines[HEAD]]
        if host == HEAD:
            lines[HEAD] = [old.replace(f"munge\t{name}\tSuccess (0)", f"munge\t{name}\tError") for old in lines[HEAD]]
    found = [problem for problems in judge(examined(local, lines)).values() for problem in problems]
    assert [(problem.node, problem.what.partition(":")[0]) for problem in found] == [(host, "munge does not work")]


def test_a_drain_by_a_person_is_reported_beside_a_fault(local: Cluster) -> None:
    lines = healthy()
    lines[FIRST] = [STOPPED.get(line, line) for line in lines[FIRST]] + [RAN]
    line = f"queue\t{FIRST}\tdrained\tnew disk"
    lines[HEAD] = [line if old == f"queue\t{FIRST}\tidle\tnone" else old for old in lines[HEAD]]
    found = judge(examined(local, lines))
    assert [problem.cause for problem in found["queue"]] == ["new disk"]


def test_an_unreachable_host_causes_one_problem(local: Cluster) -> None:
    cluster = examined(local, healthy())
    reports = {**cluster.reports, SECOND: HostReport(name=SECOND, error="ssh: connect to host x: Connection refused")}
    findings = judge(Examined(cluster=local, reports=reports))
    assert [name for name, found in findings.items() if found] == ["reach"]
    assert findings["reach"][0].cause.endswith("Connection refused")


def test_hosts_get_only_the_peer_facts_they_need() -> None:
    reports = {name: parse_report(name, lines) for name, lines in healthy().items()}
    assert peer_lines(FIRST, HEAD, reports) == [
        f"peer tcp {HEAD} 40000",
        f"peer nfs {HEAD} written",
        f"peer munge {HEAD} MUNGE:{HEAD}:",
        f"peer tcp {SECOND} 40002",
        f"peer nfs {SECOND} written",
    ]
    assert f"peer munge {SECOND} MUNGE:{SECOND}:" in peer_lines(HEAD, HEAD, reports)


def test_the_probe_script_is_complete_and_valid(local: Cluster) -> None:
    script = probe_script(local, FIRST, "abcd")
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert script.startswith(f"self={FIRST}\nself_ip=10.77.2.1\nhead={HEAD}\n")
    assert all(f"{probe}_facts()" in script for probe in probe_names())
    # The script is passed to bash as one argument, which Linux limits to 128 KiB (MAX_ARG_STRLEN).
    assert len(script) < 128 * 1024


def test_the_report_has_host_problem_cause_and_fix() -> None:
    finding = HostProblem(FIRST, "problem", "why", "how")
    text = report({"names": [finding], "tcp": []}, 3, 2.4, {"tcp": ["a fact"]})
    assert text.splitlines() == [
        "FAIL  names",
        f"      {FIRST}: problem",
        "        cause: why",
        "        fix:   how",
        "ok    tcp",
        "      a fact",
        "3 hosts, 2 checks, 2 s: 1 problem",
    ]


def test_slurm_checks_are_skipped_without_a_scheduler(local: Cluster) -> None:
    plain = replace(local, scheduler="none")
    words = ("munge", "slurm", "mariadb", "queue", "memlock")
    lines = {
        host: [line for line in output if not any(word in line for word in words)] for host, output in healthy().items()
    }
    for host in (FIRST, SECOND):
        lines[host].append(f"memlock\t{host}\tunlimited")
    findings = judge(examined(plain, lines))
    assert not any(findings.values())
    assert not {"munge", "queue"} & set(findings)
    assert {"munge", "queue"} <= set(judge(examined(local, lines)))
    script = probe_script(plain, FIRST, "abcd")
    assert "\nscheduler=none\n" in script


def test_without_slurm_the_memlock_of_logins_is_checked(local: Cluster) -> None:
    lines = {FIRST: [f"memlock\t{FIRST}\t8192"]}
    [found] = CHECKS["memlock"](examined(replace(local, scheduler="none"), lines))
    assert (found.node, "limits.d" in found.fix) == (FIRST, True)
    slow = replace(local, scheduler="none", nodes=tuple(replace(node, fabric="ethernet") for node in local.nodes))
    assert not list(CHECKS["memlock"](examined(slow, lines)))


def test_topology_is_compared_within_a_group(local: Cluster) -> None:
    lines = {FIRST: [ROW], SECOND: ["topology\tGPU0\tX SYS"]}
    assert len(list(CHECKS["topology"](examined(local, lines)))) == 1
    other = replace(local, nodes=(local.nodes[0], replace(local.nodes[1], group="other")))
    assert not list(CHECKS["topology"](examined(other, lines)))


def test_the_toolkit_is_required_only_with_real_gpus(local: Cluster) -> None:
    lines = healthy()
    lines[FIRST].remove("containers\ttoolkit\tyes")
    assert not list(CHECKS["containers"](examined(local, lines)))
    real = replace(local, nodes=tuple(replace(node, gpu_type="a100") for node in local.nodes))
    [found] = CHECKS["containers"](examined(real, lines))
    assert (found.node, found.what) == (FIRST, "the NVIDIA container toolkit is missing")


def test_a_missing_plugin_is_reported(local: Cluster) -> None:
    """Without the plugin, NCCL uses plain TCP and reports no error."""
    transport = {"gpu": Transport(library_path="/var/lib/tcpxo/lib64", mounts=())}
    nodes = tuple(replace(node, fabric="gpudirect-tcpxo") for node in local.nodes)
    lines = healthy()
    lines[FIRST] += ["containers\tplugin\t/var/lib/tcpxo/lib64"]
    [found] = CHECKS["containers"](examined(replace(local, nodes=nodes, transport=transport), lines))
    assert (found.node, found.what) == (
        SECOND,
        "the NCCL plugin for gpudirect-tcpxo is missing in /var/lib/tcpxo/lib64",
    )


def test_node_without_a_working_nvidia_smi_is_no_reference(local: Cluster) -> None:
    """The health checks report the node."""
    lines = healthy()
    lines[FIRST] = [line for line in lines[FIRST] if not line.startswith("topology")]
    assert list(CHECKS["topology"](examined(local, lines))) == []


def test_mounted_home_of_the_job_user_is_enough(local: Cluster) -> None:
    lines = healthy()
    for name in (FIRST, SECOND):
        lines[name] = [line.replace("mounts\t/home\t", "mounts\t/home/trainer\t") for line in lines[name]]
    assert list(CHECKS["mounts"](examined(replace(local, home_path="/home/trainer"), lines))) == []
    assert [found.what for found in CHECKS["mounts"](examined(local, lines))] == 2 * ["/home is not mounted"]


def test_a_clock_without_chrony_needs_a_time_service(local: Cluster) -> None:
    """Existing hosts may use a different time service."""
    lines = healthy()
    lines[FIRST] = ["clock\tchrony\t\t" if line == CHRONY else line for line in lines[FIRST]]
    [found] = CHECKS["clock"](examined(local, lines))
    assert found.fix.startswith(f"start chrony or systemd-timesyncd on {FIRST}")


def test_a_clock_synchronized_by_timesyncd_passes(local: Cluster) -> None:
    lines = healthy()
    lines[FIRST] = ["clock\tsynchronised\tyes" if line == CHRONY else line for line in lines[FIRST]]
    assert list(CHECKS["clock"](examined(local, lines))) == []


def test_open_kernel_modules_replace_nvidia_peermem(local: Cluster) -> None:
    lines = healthy()
    lines[FIRST] = [line.replace("nvidia-peermem", "dma-buf") for line in lines[FIRST]]
    assert list(CHECKS["driver"](examined(local, lines))) == []


def test_ports_that_collectives_do_not_use_are_ignored(local: Cluster) -> None:
    lines = healthy()
    storage = "infiniband\tmlx5_1/1\t1: DOWN\t40 Gb/sec (4X QDR)\tInfiniBand"
    lines[FIRST] += ["settings\tfabric\tNCCL_IB_HCA\t=mlx5_ib0", storage]
    assert list(CHECKS["infiniband"](examined(local, lines))) == []


def test_roce_ports_have_an_ethernet_link_layer(local: Cluster) -> None:
    roce = replace(local, nodes=tuple(replace(node, fabric="roce") for node in local.nodes))
    lines = healthy()
    for name in (FIRST, SECOND):
        lines[name] = [line.replace("NDR)\tInfiniBand", "NDR)\tEthernet") for line in lines[name]]
        lines[name] += ["settings\tfabric\tNCCL_IB_HCA\t=mlx5_ib0"]
    assert list(CHECKS["infiniband"](examined(roce, lines))) == []
    lines[SECOND] = [line.replace("400 Gb/sec", "200 Gb/sec") for line in lines[SECOND]]
    assert [finding.node for finding in CHECKS["infiniband"](examined(roce, lines))] == [SECOND]
