"""Parsers for scontrol and sacct output. The samples are from Slurm 24.11."""

from __future__ import annotations

import pytest

from yard.run.queue import Job, explain, parse_one, parse_sacct, parse_scontrol

SCONTROL = (
    "JobId={id} JobName=train-tiny UserId=trainer(2000) GroupId=trainer(2000) MCS_label=N/A Priority=1 Nice=0 "
    "Account=(null) QOS=normal JobState={state} Reason={reason} Dependency=(null) Requeue=1 Restarts={restarts} "
    "BatchFlag=1 Reboot=0 ExitCode={code} RunTime={time} TimeLimit=01:00:00 TimeMin=N/A "
    "SubmitTime=2026-11-21T06:59:02 EligibleTime=2026-11-21T06:59:02 StartTime=2026-11-21T06:59:02 EndTime=Unknown "
    "Partition=gpu AllocNode:Sid=0.0.0.0:0 ReqNodeList=(null) ExcNodeList=(null) NodeList={nodes} "
    "BatchHost=yard-gpu-0 NumNodes={count} NumCPUs=2 NumTasks=2 CPUs/Task=1 ReqB:S:C:T=0:0:*:* "
    "ReqTRES=cpu=2,mem=1.50G,node=2,billing=2 Command=(null) WorkDir=/shared/jobs/train-tiny-1 "
    "StdErr=/shared/jobs/train-tiny-1/job.log StdIn=/dev/null StdOut=/shared/jobs/train-tiny-1/job.log"
)

SACCT = """\
1|COMPLETED|0:0|2|yard-gpu-[0-1]|31|gpu|trainer|/shared/jobs|wrap
2|FAILED|3:0|2|yard-gpu-[0-1]|5|gpu|trainer|/shared/jobs|a | in its name
3|CANCELLED by 2000|0:0|2|None assigned|0|gpu|trainer|/shared/jobs|wrap
"""


def line(**changes: object) -> str:
    facts = {"id": 5, "state": "RUNNING", "reason": "None", "restarts": 0, "code": "0:0", "time": "00:00:02"}
    return SCONTROL.format(**{**facts, "nodes": "yard-gpu-[0-1]", "count": 2, **changes})


def one(**changes: object) -> Job:
    job = parse_one(line(**changes))
    assert job is not None
    return job


def test_fields_of_a_running_job_are_parsed() -> None:
    job = one(time="1-02:03:04", restarts=3)
    assert (job.id, job.name, job.user, job.group, job.state) == (5, "train-tiny", "trainer", "gpu", "RUNNING")
    assert (job.nodes, job.node_list, job.elapsed_s, job.restarts) == (2, "yard-gpu-[0-1]", 93784, 3)
    assert job.run_dir == "/shared/jobs/train-tiny-1"
    assert not job.ended


@pytest.mark.parametrize(
    ("state", "code", "verdict"),
    [
        ("COMPLETED", "0:0", 0),
        ("FAILED", "3:0", 3),
        ("CANCELLED", "0:15", 143),
        ("TIMEOUT", "0:0", 1),
        ("NODE_FAIL", "0:0", 1),
    ],
)
def test_only_a_completed_job_is_a_success(state: str, code: str, verdict: int) -> None:
    job = one(state=state, code=code)
    assert job.ended
    assert job.verdict == verdict


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED"])
def test_active_job_has_not_ended(state: str) -> None:
    assert not one(state=state).ended


@pytest.mark.parametrize(
    ("state", "reason", "words"),
    [
        ("PENDING", "Resources", "waiting for free nodes"),
        ("PENDING", "BeginTime", "restarts within seconds"),
        ("PENDING", "ReqNodeNotAvail,_UnavailableNodes:yard-gpu-1", "down or reserved"),
        ("PENDING", "SomethingNew", "SomethingNew"),
        ("NODE_FAIL", "None", "lost a node"),
        ("BOOT_FAIL", "None", "boot fail"),
    ],
)
def test_reasons_are_explained(state: str, reason: str, words: str) -> None:
    assert words in explain(one(state=state, reason=reason, nodes="(null)"))


def test_pending_job_has_no_nodes() -> None:
    job = one(state="PENDING", nodes="(null)", count="2-2", time="00:00:00")
    assert (job.node_list, job.nodes) == ("", 2)


def test_sacct_rows_are_parsed() -> None:
    jobs = parse_sacct(SACCT)
    assert [(job.id, job.state, job.verdict) for job in jobs] == [
        (1, "COMPLETED", 0),
        (2, "FAILED", 3),
        (3, "CANCELLED", 1),
    ]
    assert jobs[1].name == "a | in its name"
    assert jobs[2].node_list == ""


def test_other_lines_are_ignored() -> None:
    text = f"No entry for x\n{line(id=7)}\n{line(id=8)}\n"
    assert [job.id for job in parse_scontrol(text)] == [7, 8]
    assert parse_one("slurm_load_jobs error: Invalid job id specified\n") is None


def test_job_cancelled_between_starts_has_ended() -> None:
    # The last sacct row for such a job.
    [job] = parse_sacct("8|REQUEUED|0:0|2|yard-gpu-[0-1]|15|gpu|trainer|/shared/jobs/a-1|a\n")
    assert job.ended
    assert explain(job) == "cancelled"
