"""Quotas of an account: answers in the vendors' documented form, and every way of getting none."""

from __future__ import annotations

import json
import re

import pytest

from jobs.preview.shape import QuotaShape
from jobs.quota.ask import CLOUDS, ask_account
from jobs.quota.verdict import Usage, judge
from tests.jobs.conftest import MakeProgram

AZURE = {"provider": "azure", "region": "eastus"}
GCP = {"provider": "gcp", "project": "my-project-123456", "zone": "us-central1-f"}
# `az vm list-usage --output json`: the numbers are text, and -1 is no limit.
AZ_ANSWER = [
    {
        "currentValue": "104",
        "limit": "300",
        "localName": "Total Regional vCPUs",
        "name": {"localizedValue": "Total Regional vCPUs", "value": "cores"},
    },
    {
        "currentValue": "0",
        "limit": "100",
        "localName": "Standard NDAMSv4_A100 Family vCPUs",
        "name": {"localizedValue": "Standard NDAMSv4_A100 Family vCPUs", "value": "standardNDAMSv4_A100Family"},
    },
    {"currentValue": 3, "limit": -1, "localName": "Endless", "name": {"localizedValue": "Endless", "value": "endless"}},
]
PROJECT_ANSWER = {"kind": "compute#project", "quotas": [{"limit": 8.0, "metric": "GPUS_ALL_REGIONS", "usage": 0.0}]}
REGION_ANSWER = {"name": "us-central1", "quotas": [{"limit": 16.0, "metric": "NVIDIA_A100_GPUS", "usage": 0.0}]}


def need(quota: str, amount: int) -> QuotaShape:
    return QuotaShape(quota=quota, place="here", amount=amount)


def test_azure_is_asked_for_the_region_and_names_match_without_spaces(program: MakeProgram) -> None:
    az = program("az", f"echo '{json.dumps(AZ_ANSWER)}'")
    needs = [need("cores", 200), need("standard NDAMSv4_A100Family", 100), need("endless", 7), need("other", 1)]
    answer = ask_account(AZURE | {"subscription": "0000"}, needs)
    assert az.calls == ["vm list-usage --location eastus --subscription 0000 --output json"]
    assert answer.problem is None
    assert [verdict.short_by for verdict in answer.verdicts] == [4, 0, 0, None]
    assert (answer.verdicts[0].used, answer.verdicts[0].limit) == (104, 300)


def test_gcp_is_asked_for_the_project_and_the_region(program: MakeProgram) -> None:
    answers = f"'{json.dumps(PROJECT_ANSWER)}'", f"'{json.dumps(REGION_ANSWER)}'"
    gcloud = program("gcloud", f'if [ "$2" = project-info ]; then echo {answers[0]}; else echo {answers[1]}; fi')
    needs = [need("NVIDIA_A100_GPUS", 16), need("GPUS_ALL_REGIONS", 16), need("GPUS-PER-GPU-FAMILY{x}", 8)]
    answer = ask_account(GCP, needs)
    assert gcloud.calls == [
        "compute project-info describe --project my-project-123456 --format json",
        "compute regions describe us-central1 --project my-project-123456 --format json",
    ]
    assert [verdict.short_by for verdict in answer.verdicts] == [0, 8, None]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            'echo "ERROR: Please run az login to setup account." >&2; exit 1',
            r"refused: ERROR: Please run .* `az login`",
        ),
        ("echo '[{}]'", r"answered in an unknown form \(KeyError"),
        ("echo not json", "answered in an unknown form"),
        ("echo '{}'", None),
    ],
)
def test_no_answer_is_said_and_fails_nothing(program: MakeProgram, body: str, words: str | None) -> None:
    program("az", body)
    answer = ask_account(AZURE, [need("cores", 1)])
    if words is None:
        assert [verdict.short_by for verdict in answer.verdicts] == [None]
        return
    assert answer.verdicts == ()
    assert answer.problem is not None
    assert re.search(words, answer.problem)


@pytest.mark.parametrize("platform", [AZURE, GCP], ids=lambda platform: platform["provider"])
def test_a_missing_program_is_said(monkeypatch: pytest.MonkeyPatch, platform: dict[str, str]) -> None:
    monkeypatch.setenv("PATH", "")
    cloud = CLOUDS[platform["provider"]]
    problem = ask_account(platform, [need("cores", 1)]).problem
    assert problem is not None
    assert f"{cloud.PROGRAM} is not on PATH; install it and run `{cloud.LOGIN}`" in problem


def test_a_stack_without_quotas_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert ask_account({"provider": "local"}, []).problem is None


def test_a_quota_that_is_used_up_to_its_limit() -> None:
    assert [verdict.short_by for verdict in judge([need("A_b", 1)], {"a B": Usage(used=4, limit=4)})] == [1]
