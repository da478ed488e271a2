"""SSH sessions in `yard doctor` with a fake ssh that runs a short script locally."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.yard.conftest import FakeStack, MakeProgram
from yard.doctor.collect import examine
from yard.doctor.findings import HostReport
from yard.stack.load import load_stack
from yard.stack.remote import Remote

SCRIPT = r"""
printf 'shm\t2\nnfs\twrite\t0\t\n'
echo ready
while read -r line && [[ $line != go ]]; do printf 'seen\t%s\n' "$line"; done
echo done
read -r _
touch "{folder}/left-$$"
"""


@pytest.fixture
def reports(stack: FakeStack, program: MakeProgram, monkeypatch: pytest.MonkeyPatch) -> dict[str, HostReport]:
    """Return the reports from a cluster in which the second worker refuses the login."""
    script = SCRIPT.replace("{folder}", str(stack.root))
    monkeypatch.setattr("yard.doctor.collect.probe_script", lambda cluster, name, nonce: script)
    program("sudo", '[[ $1 == -n ]] && exec "${@:2}"')
    program("ssh", '[[ $* != *yard-gpu-1* ]] || { echo "Permission denied" >&2; exit 255; }; exec bash -c "${!#}"')
    return examine(Remote(load_stack("local")))


def test_hosts_exchange_facts_between_the_phases(reports: dict[str, HostReport]) -> None:
    assert reports["yard-gpu-0"].of("shm") == [("2",)]
    assert reports["yard-gpu-0"].of("seen") == [("peer nfs yard-head written",)]
    assert [report.error for report in reports.values()] == ["", "", "Permission denied"]


def test_hosts_remove_their_files_at_the_end(reports: dict[str, HostReport], tmp_path: Path) -> None:
    assert len(list(tmp_path.glob("left-*"))) == 2
