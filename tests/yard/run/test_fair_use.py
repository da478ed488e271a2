"""Limits of people and accounts in messages, and GPU hours.

STATE and USED are recorded from Slurm 24.11.5, without the TRES that are not read. 22.05.8 and 23.11.4 print the same
format.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.yard.conftest import FakeStack, LocalHead, MakeProgram, printed, refused, yard
from tests.yard.run.test_people import As, as_person, people
from trainyard.outputs import Cluster
from yard.run.fair_use import gpu_hour_usd, held, refusal

__all__ = ["as_person", "people"]

STATE = """\
Current Association Manager state
Association Records
ClusterName=yard Account=vision UserName= Partition= ID=5 GrpTRES=cpu=N(1),billing=3(1),gres/gpu=N(1) \
GrpTRESMins=cpu=N(0),billing=600(570),gres/gpu=N(570) GrpTRESRunMins=billing=N(30),gres/gpu=N(30) MaxWallPJ=120
ClusterName=yard Account=nlp UserName= Partition= ID=4 GrpTRES=cpu=N(1),billing=N(1),gres/gpu=N(1) \
GrpTRESMins=cpu=N(0),billing=N(0),gres/gpu=N(0) GrpTRESRunMins=billing=N(0),gres/gpu=N(0) MaxWallPJ=
ClusterName=yard Account=vision UserName=ann(23870) Partition= ID=7 GrpTRES=billing=N(1) GrpTRESMins= MaxWallPJ=60
ClusterName=yard Account=nlp UserName=bob(28650) Partition= ID=8 GrpTRES=billing=N(1) GrpTRESMins= MaxWallPJ=
ClusterName=yard Account=vision UserName=bob(28650) Partition= ID=9 GrpTRES=billing=N(1) GrpTRESMins= MaxWallPJ=120
QOS Records
QOS=normal(1) UsageRaw=0 GrpTRES=gres/gpu=N(0) GrpTRESMins=gres/gpu=N(0)
QOS=person-ann(2) UsageRaw=0 GrpTRES=billing=N(1),gres/gpu=2(1),gres/gpumem=N(0) \
GrpTRESMins=gres/gpu=120(90),gres/gpumem=N(0) GrpTRESRunMins=gres/gpu=N(45),gres/gpumem=N(0) MaxWallPJ=
"""
USED = "root||4136\nnlp||0\nnlp|bob|0\nvision||3630\nvision|ann|3600\nvision|bob|30\ntrainer|trainer|506\n"
GPUS_OF_ANN = "`limits.people.ann.gpus` permits 2 GPUs at once, and jobs of ann are using 1"
HOURS_OF_ANN = (
    "`limits.people.ann.gpu_hours_per_month` permits 2, of which jobs of ann have used 1.5 this month, and running "
    "jobs need up to 0.8"
)
GPUS_OF_VISION = "`limits.accounts.vision.gpus` permits 3 GPUs at once, and jobs of vision are using 1"
HOURS_OF_VISION = (
    "`limits.accounts.vision.gpu_hours_per_month` permits 10, of which jobs of vision have used 9.5 this month, and "
    "running jobs need up to 0.5"
)
CASES = [
    ("ann", "vision", "QOSGrpGRES", GPUS_OF_ANN),
    ("ann", "vision", "QOSGrpGRESMinutes", HOURS_OF_ANN),
    ("ann", "vision", "AssocGrpBilling", GPUS_OF_VISION),
    ("bob", "vision", "AssocGrpBillingMinutes", HOURS_OF_VISION),
    ("ann", "vision", "AssocMaxWallDurationPerJobLimit", "`limits.people.ann.time` permits 60 min"),
    ("bob", "vision", "AssocMaxWallDurationPerJobLimit", "`limits.accounts.vision.time` permits 2 h 00"),
]
WHO = "; an operator can change the limit in the stack file"
Head = Callable[..., LocalHead]


@pytest.fixture
def head(people: Cluster, program: MakeProgram) -> Head:
    """A function that returns a head with these pending jobs, which are squeue's rows."""

    def make(*rows: str) -> LocalHead:
        program("squeue", f"printf '{''.join(f'{row}{chr(92)}n' for row in rows)}'")
        program("scontrol", f"cat <<'END'\n{STATE}END")
        return LocalHead(people)

    return make


@pytest.mark.parametrize(("user", "account", "reason", "sentence"), CASES)
def test_a_waiting_job_states_its_limit(user: str, account: str, reason: str, sentence: str, head: Head) -> None:
    rows = (f"7|{user}|{account}|{reason}", "8|ann|vision|ReqNodeNotAvail, UnavailableNodes:yard-gpu-0")
    assert held(head(*rows), [7, 8]) == {7: sentence + WHO}  # type: ignore[arg-type]


def test_a_job_that_waits_for_nodes_has_no_limit(head: Head) -> None:
    assert held(head("7|ann|vision|Resources"), [7]) == {}  # type: ignore[arg-type]
    assert held(head(), [7]) == {}  # type: ignore[arg-type]


def test_a_refused_job_states_the_limits_of_all_accounts(head: Head) -> None:
    remote = head()
    for user, reason, sentence in (
        ("ann", "QOSGrpGRES", GPUS_OF_ANN),
        ("bob", "AssocGrpBilling", GPUS_OF_VISION),
        ("bob", "AssocMaxWallDurationPerJobLimit", "`limits.accounts.vision.time` permits 2 h 00"),
    ):
        error = (
            f"sbatch: error: {reason}\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy"
        )
        assert refusal(remote, user, error) == sentence + WHO  # type: ignore[arg-type]
    assert refusal(remote, "ann", "sbatch: error: invalid partition specified: x\n") is None  # type: ignore[arg-type]


def test_commands_state_limits(stack: FakeStack, as_person: As) -> None:
    record = "JobId=7 JobName=one UserId=ann(23870) JobState=PENDING Reason=QOSGrpGRES WorkDir=/x"
    (stack.root / "state").mkdir(exist_ok=True)
    (stack.root / "assoc").write_text(STATE)
    stack.program(
        "ssh",
        f"""case "${{!#}}" in
  *"squeue -h -t all"*) echo ann ;;
  *"squeue -h -a -t all"*) echo '7|ann' ;;
  *squeue*) echo '7|ann|vision|QOSGrpGRES'; echo '===limits==='; cat {stack.root}/assoc ;;
  *"scontrol -o show jobs"*) echo '{record}' ;;
  *assoc_mgr*) cat {stack.root}/assoc ;;
  *"scontrol -o show job "*) echo '{record}' | sed s/PENDING/FAILED/ ;;
  *sbatch*)
    cat >/dev/null
    [[ -e {stack.root}/refuse ]] || {{ echo 7; exit; }}
    printf 'sbatch: error: %s\\n' QOSGrpGRES 'Batch job submission failed' >&2
    exit 1
    ;;
esac""",
    )
    as_person("ann")
    assert GPUS_OF_ANN + WHO in " ".join(printed("ps").split())
    [job] = json.loads(printed("ps", "--json"))
    assert (job["why"], job["reason"]) == (GPUS_OF_ANN + WHO, "QOSGrpGRES")
    assert f"yard: job 7 is queued: {GPUS_OF_ANN}{WHO}" in yard("submit", "hello")[2]
    (stack.root / "refuse").touch()
    said = refused("submit", "hello")
    assert f"Slurm refused hello, because {GPUS_OF_ANN}{WHO}. Fix: request less with --nodes" in said
    assert f"Slurm refused job 7, because {GPUS_OF_ANN}{WHO}" in refused("resume", "7")


def test_usage_shows_own_rows_to_people_and_all_rows_to_admins(
    stack: FakeStack, as_person: As, people: Cluster
) -> None:
    ssh = stack.program("ssh", f"printf '{USED}'".replace("\n", "\\n"))
    priced = replace(people, usd_per_hour=10.0)
    gpus = sum(node.gpus for node in priced.nodes)
    assert gpu_hour_usd(priced) == 10 / gpus
    as_person("ann")
    rows = json.loads(printed("usage", "--month", "2026-12", "--json"))
    assert rows == [
        {"version": 1, "month": "2026-12", "user": "ann", "account": "vision", "gpu_hours": 1.0, "usd": None}
    ]
    assert "Start=2026-12-01 End=2027-01-01 " in ssh.calls[-1]
    assert "the cost is unknown" in printed("usage")
    as_person("root1")
    assert [row["user"] for row in json.loads(printed("usage", "--json"))] == ["ann", "bob", "trainer"]
    assert "2026-13" in yard("usage", "--month", "2026-13")[2]


def test_usage_of_an_operator_has_costs(stack: FakeStack, people: Cluster) -> None:
    stack.program("ssh", f"printf '{USED}'".replace("\n", "\\n"))
    gpus = sum(node.gpus for node in people.nodes)
    stack.deploy(replace(people, usd_per_hour=2.0 * gpus))
    lines = [line.split() for line in printed("usage", "--month", "2026-11").splitlines()]
    assert lines[1:5] == [
        ["ann", "vision", "1.0", "$2.00"],
        ["bob", "vision", "0.0", "$0.02"],
        ["trainer", "trainer", "0.1", "$0.28"],
        ["1.1", "$2.30"],
    ]
    assert "a GPU hour costs $2.00: the list price of all machines" in printed("usage")


def test_usage_needs_people(stack: FakeStack, local: Cluster) -> None:
    stack.deploy(local)
    assert "cluster 'yard' has no people, so all jobs belong to one account" in refused("usage")
