"""The lists on the reference pages equal the code."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.main import get_command

from components.catalog import HOURS_PER_MONTH, service_prices
from components.platforms.demand import known_usd, unpriced
from components.stackfile.read import Stack, parse_stack
from tests.conftest import ROOT
from tools.reference import GUIDES, SECTIONS, checks_page, lists, replaced
from yard.commands.cli import app
from yard.job.loader import load_job

PAGES = {page: (ROOT / "docs" / f"{page}.md").read_text() for page in ("commands", "stack-file")}


@pytest.mark.parametrize(("page", "name"), lists())
def test_lists_are_current(page: str, name: str) -> None:
    expected = replaced(PAGES[page], name, lists()[page, name])
    assert PAGES[page] == expected, "run `python -m tools.reference` and review the differences"


def test_a_page_without_a_place_for_a_list_is_reported() -> None:
    with pytest.raises(ValueError, match="generated: keys"):
        replaced("# Page\n", "keys", "- a\n")


def test_guides_belong_to_commands_and_keys() -> None:
    commands: set[str] = set(get_command(app).commands)  # type: ignore[attr-defined]
    assert set(GUIDES) == commands
    assert [path for path in SECTIONS if f"`{path}`" not in PAGES["stack-file"]] == []


@pytest.mark.parametrize(
    "key",
    ["`name`", "`nodes.<group>.elastic.min`", "`users[].uid`", "`hosts[].private_ip`", "`limits.idle_gpu.action`"],
)
def test_the_stack_file_page_contains_nested_keys(key: str) -> None:
    assert f"\n- {key}: " in PAGES["stack-file"]


def test_keys_with_one_possible_value_are_omitted() -> None:
    assert [key for key in ("provider", "image", "idle.action") if f"- `{key}`: Default" in PAGES["stack-file"]] == []
    assert "\n- `image`: `debian-12`, " in PAGES["stack-file"]


def test_rules_without_a_docstring_are_sentences() -> None:
    assert "\n- `monitoring.email.to`: Must be an e-mail address. Required.\n" in PAGES["stack-file"]


def test_the_page_on_checks_contains_each_platform() -> None:
    text = checks_page()
    assert "| `machine-known` | error | Every machine type exists on the platform. |" in text
    assert [title for title in ("Azure", "Google Cloud", "Existing hosts") if f"## {title}" not in text] == []


def stack_in(page: str) -> Stack:
    """Return the first stack file on a page."""
    return parse_stack(page.partition("```yaml\n")[2].partition("```")[0], "example")


def test_the_example_on_the_stack_file_page_is_valid() -> None:
    assert stack_in(PAGES["stack-file"]).plan.name == "yard"


def test_the_readme_states_the_price_of_its_example() -> None:
    readme = (ROOT / "README.md").read_text()
    plan = stack_in(readme).plan
    assert f"this cluster costs ${known_usd(plan):.2f} per hour, with $0.40 for Azure Bastion" in readme
    assert not unpriced(plan)


def test_the_job_file_in_the_readme_is_valid(tmp_path: Path) -> None:
    job = (ROOT / "README.md").read_text().split("```yaml\n")[2].partition("```")[0]
    (tmp_path / "job.yaml").write_text(job)
    (tmp_path / "train.py").touch()
    assert load_job(str(tmp_path / "job.yaml"), {}, {}, []).spec.launcher == "torchrun"


def test_the_cost_page_states_the_price_of_remaining_storage() -> None:
    def month(provider: str, *rows: str) -> float:
        return sum(service_prices(provider)[row].usd(1024) or 0 for row in rows) * HOURS_PER_MONTH

    head = f"Azure ${month('azure', 'premium-ssd'):.0f}, Google Cloud ${month('gcp', 'pd-ssd'):.0f}"
    network = f"${month('azure', 'nat-gateway', 'public-address'):.2f}"
    gateway = "the NAT gateway and its address"
    rows = {
        "`head_nfs`": head,
        "`azure_files`": f"${month('azure', 'azure-files-premium'):.0f}, and {network} for {gateway}",
        "`azure_netapp` (Premium)": f"${month('azure', 'netapp-Premium'):.0f}, and the same {network}",
        "`filestore` (ZONAL)": f"${month('gcp', 'filestore-ZONAL'):.0f}",
    }
    page = (ROOT / "docs" / "cost.md").read_text()
    assert [row for name, price in rows.items() if (row := f"| {name} | {price} |") not in page] == []
