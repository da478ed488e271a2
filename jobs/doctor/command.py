"""`yard doctor`: examine, judge, show."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence

from jobs.doctor.checks import judge
from jobs.doctor.collect import examine
from jobs.doctor.findings import Examined, Finding
from jobs.remote import Remote
from jobs.show import say, say_json

_SICK = 1


def run_doctor(remote: Remote, as_json: bool) -> int:
    """Examine the cluster and show what was found. Returns the exit code: 1 when something would break a job."""
    start = time.monotonic()
    if not as_json:
        sys.stderr.write("yard: asking every host what it sees\n")
    examined = Examined(cluster=remote.stack.cluster, reports=examine(remote))
    findings = judge(examined)
    seconds = time.monotonic() - start
    sick = any(findings.values())
    if as_json:
        rows = {name: [finding.as_json() for finding in found] for name, found in findings.items()}
        say_json({"healthy": not sick, "seconds": round(seconds, 1), "checks": rows})
    else:
        say(report(findings, len(examined.reports), seconds))
    return _SICK if sick else 0


def report(findings: Mapping[str, Sequence[Finding]], hosts: int, seconds: float) -> str:
    """Return the findings as people read them. Pure."""
    lines = []
    for name, found in findings.items():
        lines.append(f"{'FAIL' if found else 'ok  '}  {name}")
        for finding in found:
            lines.append(f"      {finding.node}: {finding.what}")
            lines += [f"        cause: {finding.cause}"] if finding.cause else []
            lines.append(f"        fix:   {finding.fix}")
    count = sum(len(found) for found in findings.values())
    verdict = "nothing would break a job" if count == 0 else f"{count} finding" + ("s" if count > 1 else "")
    return "\n".join([*lines, f"{hosts} hosts, {len(findings)} checks, {seconds:.0f} s: {verdict}"]) + "\n"
