"""Parser for running jobs, and the message that lists them."""

from __future__ import annotations

import pytest

from components.cluster.busy import RunningJob, busy_message, ended_jobs, hosts_of, parse_jobs


def job(nodes: str, number: str = "12") -> RunningJob:
    return RunningJob(id=number, user="trainer", name="train", nodes=nodes)


@pytest.mark.parametrize(
    ("nodes", "hosts"),
    [
        ("", []),
        ("yard-gpu-0", ["yard-gpu-0"]),
        ("yard-gpu-[0-2,7]", ["yard-gpu-0", "yard-gpu-1", "yard-gpu-2", "yard-gpu-7"]),
        ("a-0,b-[08-10],c", ["a-0", "b-08", "b-09", "b-10", "c"]),
    ],
)
def test_expands_host_lists(nodes: str, hosts: list[str]) -> None:
    assert list(hosts_of(nodes)) == hosts


def test_job_name_may_contain_the_separator() -> None:
    (found,) = parse_jobs("12_3|trainer|yard-gpu-[0-1]|a|b c\n")
    assert found == RunningJob(id="12_3", user="trainer", name="a|b c", nodes="yard-gpu-[0-1]")


def test_replaces_control_characters_in_job_names() -> None:
    (found,) = parse_jobs("1|u|n|\x1b[2J\u202ename\n")
    assert found.name == "?[2J?name"


def test_rejects_other_output() -> None:
    with pytest.raises(ValueError, match="unpack"):
        parse_jobs("Welcome to this machine\n")


def test_returns_only_jobs_on_changed_machines() -> None:
    jobs = (job("yard-gpu-[0-1]", "1"), job("yard-gpu-10", "2"))
    assert ended_jobs(jobs, ["yard-gpu-1"], "yard-head") == jobs[:1]
    assert ended_jobs(jobs, ["yard-gpu-2"], "yard-head") == ()


def test_replacing_the_head_ends_all_jobs() -> None:
    jobs = (job("yard-gpu-0"), job("", "13"))
    assert ended_jobs(jobs, ["yard-head"], "yard-head") == jobs


def test_message_has_machines_jobs_users_and_fix() -> None:
    text = busy_message([job("yard-gpu-[0-1]")], ["yard-gpu-0", "yard-gpu-1"])
    assert text.startswith("this change replaces, restarts or removes yard-gpu-0, yard-gpu-1, and running jobs")
    assert "\n  job 12 (train) of trainer on yard-gpu-[0-1]\n" in text
    assert text.endswith("run `pulumi up --config trainyard:end_jobs=12`")


def test_message_shortens_long_lists() -> None:
    text = busy_message([job("n", str(number)) for number in range(30)], [f"n-{index}" for index in range(512)])
    assert len(text.splitlines()) == 23
    assert "  and 10 more" in text
    assert "n-19 and 492 more," in text
