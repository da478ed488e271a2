"""`yard doctor`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from yard.doctor.checks import judge
from yard.doctor.collect import examine
from yard.doctor.findings import Examined, HostProblem
from yard.doctor.nccl_checks import nccl_facts
from yard.show import say, say_json, warn
from yard.stack.remote import Remote


def run_doctor(remote: Remote, as_json: bool) -> int:
    """Check the cluster and print the problems. Returns the exit code, which is 1 if any check found a problem."""
    start = time.monotonic()
    if text := remote.stack.cluster.warning:
        warn(f"yard: {text}")
    if not as_json:
        warn("yard: checking every host")
    reports = examine(remote)
    examined = Examined(cluster=remote.stack.cluster, reports=reports)
    findings, facts = judge(examined), {"nccl": nccl_facts(examined)}
    seconds = time.monotonic() - start
    healthy = not any(findings.values())
    if as_json:
        rows = {name: [{"probe": name, **asdict(finding)} for finding in found] for name, found in findings.items()}
        say_json({"healthy": healthy, "seconds": round(seconds, 1), "checks": rows, "facts": facts})
    else:
        say(report(findings, len(reports), seconds, facts))
    return 0 if healthy else 1


def report(
    findings: Mapping[str, Sequence[HostProblem]], hosts: int, seconds: float, facts: Mapping[str, Sequence[str]]
) -> str:
    """Return the problems and facts as text, grouped by check."""
    lines = []
    for name, found in findings.items():
        lines.append(f"{'FAIL' if found else 'ok  '}  {name}")
        lines += [f"      {fact}" for fact in facts.get(name, ())]
        for finding in found:
            lines.append(f"      {finding.node}: {finding.what}")
            lines += [f"        cause: {finding.cause}"] if finding.cause else []
            lines.append(f"        fix:   {finding.fix}")
    count = sum(len(found) for found in findings.values())
    verdict = "no problems found" if count == 0 else f"{count} problem" + ("s" if count > 1 else "")
    return "\n".join([*lines, f"{hosts} hosts, {len(findings)} checks, {seconds:.0f} s: {verdict}"]) + "\n"
