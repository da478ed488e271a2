"""Account quotas with fake CLIs: documented output, failures and missing programs."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from components.catalog import images
from components.platforms.azure.facts import SERVICES
from components.platforms.azure.spec import AzureSpec
from components.platforms.gcp.facts import required_services
from components.platforms.registry import platform_spec
from tests.yard.conftest import MakeProgram
from yard.preview.account import Account, account_of
from yard.preview.cloud_cli import AzureCli
from yard.preview.describe import Quota

SUBSCRIPTION = "00000000-0000-0000-0000-000000000000"
AZURE = {"provider": "azure", "region": "eastus"}
GCP = {"provider": "gcp", "project": "my-project-123456", "zone": "us-central1-f"}
PUBLISHER, OFFER, IMAGE_SKU, PINNED = str(images()["azure-ubuntu-24.04-hpc"].reference).split(":")
OFFERED = [{"sku": IMAGE_SKU, "version": PINNED}]

# The output of `az vm list-usage --output json`. Numbers can be strings, and -1 means no limit.
AZ_ANSWER = [
    {"currentValue": "104", "limit": "300", "name": {"localizedValue": "Total Regional vCPUs", "value": "cores"}},
    {"currentValue": "0", "limit": "100", "name": {"value": "standardNDAMSv4_A100Family"}},
    {"currentValue": 3, "limit": -1, "name": {"value": "endless"}},
]
PROJECT_ANSWER = {"kind": "compute#project", "quotas": [{"limit": 8.0, "metric": "GPUS_ALL_REGIONS", "usage": 0.0}]}
REGION_ANSWER = {"name": "us-central1", "quotas": [{"limit": 16.0, "metric": "NVIDIA_A100_GPUS", "usage": 0.0}]}
GCP_BODIES = {"project-info": PROJECT_ANSWER, "regions": REGION_ANSWER}
SKU = "Standard_ND96isr_H100_v5"


def need(quota: str, amount: int) -> Quota:
    return Quota(quota=quota, place="here", amount=amount)


def read_account(platform: dict[str, str], needs: list[Quota], machines: Sequence[str] = ()) -> Account:
    return account_of(platform_spec(platform), needs, machines)


def quota_info(value: str, **dimensions: str) -> dict[str, Any]:
    """Return an item of a QuotaInfo object as documented for the Cloud Quotas API v1."""
    return {"dimensions": dimensions, "details": {"value": value}, "applicableLocations": ["us-central1"]}


FAMILIES = [quota_info("64", gpu_family="NVIDIA_H200"), quota_info("8", gpu_family="NVIDIA_H100")]
QUOTA_ANSWERS = {
    "describe?GPUS-": {"quotaId": "GPUS-PER-GPU-FAMILY-per-project-region", "dimensionsInfos": FAMILIES},
    "Enterprise": {"dimensionsInfos": [quota_info("10240", region="us-central1")]},
}


def answers(**by_word: object) -> str:
    """Return the body of a fake CLI. It prints the JSON value for the first key that its arguments contain."""
    lines = [f"*{word}*) echo '{json.dumps(answer)}';;" for word, answer in by_word.items()]
    return f'case "$*" in {" ".join(lines)} *) echo "no answer" >&2; exit 1;; esac'


def test_azure_quotas_are_matched_without_spaces(program: MakeProgram) -> None:
    az = program("az", answers(vm=AZ_ANSWER))
    needs = [need("cores", 200), need("Standard NDAMSv4-A100Family", 101), need("endless", 7), need("other", 1)]
    answer = read_account(AZURE | {"subscription": SUBSCRIPTION}, needs)
    assert az.calls == [f"vm list-usage --location eastus --subscription {SUBSCRIPTION} --output json"]
    assert answer.problem is None
    assert [verdict.short_by for verdict in answer.verdicts] == [4, 1, 0, None]
    assert (answer.verdicts[0].used, answer.verdicts[0].limit) == (104, 300)


def test_azure_lists_addresses_and_netapp_only_if_needed(program: MakeProgram) -> None:
    used = [{"currentValue": 9, "limit": 10, "name": {"value": "PublicIPAddresses"}}]
    netapp = [{"name": "eastus/totalTiBsPerSubscription", "current": 25, "default": 25}]
    program("az", answers(network=used, netappfiles=netapp, vm=AZ_ANSWER))
    answer = read_account(AZURE, [need("PublicIPAddresses", 2), need("totalTiBsPerSubscription", 4)])
    assert [verdict.short_by for verdict in answer.verdicts] == [1, 0]
    assert [verdict.used for verdict in answer.verdicts] == [9, None]
    program("az", answers(vm=AZ_ANSWER))
    answer = read_account(AZURE, [need("cores", 1), need("totalTiBsPerSubscription", 4)], [SKU])
    assert [verdict.short_by for verdict in answer.verdicts] == [0, None], "a failed list leaves its quota unknown"
    assert answer.verdicts[1].command == "az netappfiles quota-limit list --location eastus --output json"
    assert answer.notes[0].startswith("further checks were skipped: az failed: no answer")


def test_gcp_quotas_of_project_and_region_are_read(program: MakeProgram) -> None:
    gcloud = program("gcloud", answers(**GCP_BODIES))
    needs = [need("NVIDIA_A100_GPUS", 16), need("GPUS_ALL_REGIONS", 16), need("A9_CPUS", 8)]
    answer = read_account(GCP, needs)
    assert gcloud.calls == [
        "compute project-info describe --project my-project-123456 --format json",
        "compute regions describe us-central1 --project my-project-123456 --format json",
    ]
    assert [verdict.short_by for verdict in answer.verdicts] == [0, 8, None]
    assert answer.verdicts[2].command == "gcloud compute regions describe us-central1 --project my-project-123456"


def test_gpu_family_and_filestore_quotas_are_read(program: MakeProgram) -> None:
    program("gcloud", answers(**GCP_BODIES, **QUOTA_ANSWERS))
    needs = [need("GPUS-PER-GPU-FAMILY{gpu_family=NVIDIA_H100}", 16), need("EnterpriseStorageGibPerRegion", 10240)]
    needs.append(need("PREEMPTIBLE-GPUS-PER-GPU-FAMILY{gpu_family=NVIDIA_H100}", 16))
    verdicts = read_account(GCP, needs).verdicts
    assert [(verdict.limit, verdict.short_by) for verdict in verdicts] == [(8, 8), (10240, 0), (None, None)]
    assert verdicts[2].command.startswith("gcloud beta quotas info describe PREEMPTIBLE-GPUS-PER-GPU-FAMILY-per-")


def test_gcp_reports_what_the_stack_cannot_use(program: MakeProgram) -> None:
    refusal = '[[ "$*" != *image* ]] || { echo "not found" >&2; exit 3; }; '
    enabled = [{"config": {"name": name}} for name in required_services() if name != "file.googleapis.com"]
    bodies = {**GCP_BODIES, "services": enabled, "machine-types": [{"name": "n2-standard-8"}], "images": {}}
    apis = "run `gcloud services enable file.googleapis.com --project my-project-123456`"
    image, machine = "image cannot be read with `gcloud compute images describe ", "does not offer a2-highgpu-8g"
    for script, texts in ((answers(**bodies), [apis, machine]), (refusal + answers(**bodies), [apis, image, machine])):
        program("gcloud", script)
        notes = read_account(GCP, [need("NVIDIA_A100_GPUS", 16)], ["n2-standard-8", "a2-highgpu-8g"]).notes
        assert [text in note for text, note in zip(texts, notes, strict=True)] == [True] * len(texts), notes


REGISTERED = [{"namespace": name, "registrationState": "Registered"} for name in SERVICES.values()]
NO_LOCATION = {"type": "Location", "reasonCode": "NotAvailableForSubscription"}
NO_ZONE = {"type": "Zone", "restrictionInfo": {"zones": ["1"]}, "reasonCode": "x"}


@pytest.mark.parametrize(
    ("changed", "texts"),
    [
        ({}, []),
        ({"list-skus": []}, ["eastus does not offer Standard_ND96isr_H100_v5"]),
        (
            {"list-skus": [{"name": SKU, "restrictions": [NO_LOCATION]}]},
            ["may not use Standard_ND96isr_H100_v5 in eastus (NotAvailableForSubscription)"],
        ),
        (
            {"list-skus": [{"name": SKU, "locationInfo": [{"zones": ["1", "2"]}], "restrictions": [NO_ZONE]}]},
            ["in zone 1 of eastus, only in ['2']"],
        ),
        ({"provider": []}, [f"provider {name} is not registered" for name in sorted(SERVICES.values())]),
        ({"image?list": []}, ["Azure does not offer version "]),
    ],
)
def test_azure_reports_what_the_stack_cannot_use(
    program: MakeProgram, changed: dict[str, object], texts: list[str]
) -> None:
    skus = [{"name": SKU, "locationInfo": [{"zones": ["1"]}], "restrictions": []}]
    offered = [{"sku": IMAGE_SKU, "version": PINNED}]
    bodies: dict[str, object] = {"list-skus": skus, "image?list": offered, "provider": REGISTERED, "vm": AZ_ANSWER}
    program("az", answers(**bodies | changed))
    notes = read_account(AZURE | {"zone": "1"}, [need("cores", 1)], [SKU]).notes
    assert [text in note for text, note in zip(texts, notes, strict=True)] == [True] * len(texts)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ('echo "ERROR: Please run az login." >&2; exit 1', r"failed: ERROR: Please run .* `az login`"),
        ("echo '[{}]'", r"printed an unknown format \(KeyError"),
        ("echo not json", "printed an unknown format"),
    ],
)
def test_a_failed_cli_is_reported_without_an_error(program: MakeProgram, body: str, text: str) -> None:
    program("az", body)
    answer = read_account(AZURE, [need("cores", 1)])
    assert answer.verdicts == ()
    assert re.search(text, str(answer.problem))


@pytest.mark.parametrize("platform", [AZURE, GCP], ids=lambda platform: platform["provider"])
def test_a_missing_cli_is_reported(monkeypatch: pytest.MonkeyPatch, platform: dict[str, str]) -> None:
    monkeypatch.setenv("PATH", "")
    problem = str(read_account(platform, [need("cores", 1)]).problem)
    assert re.fullmatch("(az|gcloud) is not on PATH. Fix: install it; if it is not logged in, run `.* login`", problem)
    assert read_account(platform, []).problem is None


OTHERS = ["24.04.2026091001", "24.04.2026101001", "24.04.2026110101"]


def rows(versions: list[str], sku: str = IMAGE_SKU) -> list[dict[str, str]]:
    """Return rows in the format of `az vm image list --all --output json`."""
    return [{"offer": OFFER, "publisher": PUBLISHER, "sku": sku, "version": one} for one in versions]


def image_notes(platform: dict[str, str], offered: list[Any]) -> list[str]:
    """Return the notes about the image, if `az vm image list` prints `offered`, and all else is in order."""
    cli = AzureCli(AzureSpec.model_validate(platform), lambda words: REGISTERED if "provider" in words else offered)
    return list(cli.notes([]))


@pytest.mark.parametrize(
    ("platform", "offered", "gone"),
    [
        ({}, rows([PINNED, *OTHERS]), False),
        ({}, rows(OTHERS), True),
        ({}, rows(OTHERS) + rows([PINNED], "2404-arm"), True),
        ({}, [], True),
        ({"image_version": OTHERS[0]}, rows(OTHERS), False),
        ({"image_version": "1.2.3"}, rows([PINNED]), True),
        ({"custom_image": "/subscriptions/s/resourceGroups/r/providers/Microsoft.Compute/images/own"}, [], False),
    ],
)
def test_an_image_version_must_be_offered(platform: dict[str, str], offered: list[Any], gone: bool) -> None:
    assert bool(image_notes(AZURE | platform, offered)) is gone


def test_a_withdrawn_version_is_reported_with_newer_ones() -> None:
    [problem] = image_notes(AZURE, rows(["9.9.9", *reversed(OTHERS)]))
    assert f"not offer version {PINNED} of the image microsoft-dsvm:ubuntu-hpc:2404 in eastus" in problem
    assert "Fix: set cluster.platform.image_version" in problem
    assert f"(newest: {', '.join(OTHERS)})" in problem
