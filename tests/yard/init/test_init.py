"""New stack files: every machine type, every blog post, refusals, budgets, and existing files."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from components.catalog import machines
from components.platforms import PLATFORMS
from components.platforms.azure.spec import size_of
from components.platforms.gcp.spec import family_of
from components.stackfile.read import read_stack
from tests.conftest import ROOT
from tests.yard.conftest import MakeProgram
from tests.yard.init.conftest import WriteStack
from trainyard.errors import RemoteError
from yard.init.answers import _PLACES as PLACES
from yard.init.answers import InitError, network_of
from yard.init.new_stack import NewStack, posts
from yard.preview.describe import describe

KEY = f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{'B' * 43}"
TWO_HOSTS = "ubuntu@203.0.113.10=10.19.60.10 ubuntu@203.0.113.11:2222=10.19.61.11"
OPTIONS = {
    "azure": {"budget": "none", "count": "2"},
    "gcp": {"budget": "none", "count": "2", "project": "my-project-1"},
    "hosts": {"host": TWO_HOSTS, "image": "ubuntu-24.04"},
    "local": {"count": "2"},
}
WITH_GPUS = [(provider, name) for provider in PLATFORMS for name, found in machines(provider).items() if found.gpus]
POSTS = posts()
A100 = {"provider": "azure", "region": "eastus", "machine": "Standard_ND96amsr_A100_v4"}


def options_for(provider: str, machine: str) -> dict[str, str]:
    place = {"region": PLACES[provider][1]([machine])[0]} if provider in PLACES else {}
    return {"name": "new", "provider": provider, "machine": machine, **place, **OPTIONS[provider]}


def reason_in_the_catalog(provider: str, machine: str) -> str | None:
    """Return a word from the error message for an unusable machine type, or None if the machine type can be used."""
    if provider == "azure":
        size = size_of(machine)
        return "retired" if size.retired else None if size.stock_image else "pinned image"
    return "pinned image" if provider == "gcp" and not family_of(machine).stock_image else None


@pytest.fixture
def keyscan(program: MakeProgram) -> None:
    """Fake programs that print a host key and its fingerprint."""
    program("ssh-keyscan", f"echo 'host {KEY}'")
    program("ssh", f"echo 'host {KEY}'")
    program("ssh-keygen", "echo '256 SHA256:fingerprint no comment (ED25519)'")


def passes(new: NewStack) -> None:
    """Assert that the file passes the checks of `yard preview`, and that its lines are short."""
    described = describe("new", new.file.parent)
    assert described.plan is not None
    assert described.findings == new.report.description.findings
    assert max(map(len, new.file.read_text().splitlines())) <= 120
    assert list(new.file.parent.glob("*.new")) == []


@pytest.mark.parametrize(("provider", "machine"), WITH_GPUS, ids=str)
def test_every_machine_gives_a_valid_file(provider: str, machine: str, write: WriteStack, keyscan: None) -> None:
    reason = reason_in_the_catalog(provider, machine)
    if reason is None:
        new = write(**options_for(provider, machine))
        passes(new)
        plan = read_stack(new.file).plan
        assert {host.machine.name for host in plan.nodes} == {machine}
        assert len(plan.nodes) == 2
        return
    with pytest.raises(InitError, match=f"--machine: .*{reason}"):
        write(**options_for(provider, machine))


@pytest.mark.parametrize("post", POSTS)
def test_every_post_gives_a_valid_file(post: str, write: WriteStack, stacks: Path, keyscan: None) -> None:
    given = {"azure": {}, "gcp": {"project": "mine-1234", "budget": "99"}, "hosts": {"host": TWO_HOSTS}}
    committed = read_stack(stacks / f"Pulumi.{POSTS[post]}.yaml").plan
    new = write(post, name="new", **given[committed.provider])
    passes(new)
    plan = read_stack(new.file).plan
    assert (plan.provider, plan.scheduler, plan.storage) == (committed.provider, committed.scheduler, committed.storage)
    assert {host.machine.name for host in plan.hosts} == {host.machine.name for host in committed.hosts}
    assert plan.head.runs_jobs == committed.head.runs_jobs


def test_the_file_of_a_post_keeps_its_comments(write: WriteStack, stacks: Path) -> None:
    kept = write("deepspeed-azure", name="new").file.read_text()
    committed = (stacks / "Pulumi.azure-h100.yaml").read_text()
    assert kept.partition("name: new\n")[2] == committed.partition("name: hopper\n")[2]
    # Comments above changed values describe the old values.
    text = write("abeja", name="other", project="mine-1234", budget="99").file.read_text()
    assert "Replace this value" not in text
    assert "# Filestore is in the same zone" in text


def test_silenced_checks_are_reported_for_other_values(write: WriteStack) -> None:
    new = write("cyclecloud", name="new", region="westus2")
    assert "silence" not in new.file.read_text()
    assert {"price-region", "storage-throughput"} <= {found.check for found in new.report.description.findings}


def test_the_docs_list_every_post() -> None:
    row = next(line for line in (ROOT / "docs/platforms/clouds.md").read_text().splitlines() if "`--from`" in line)
    assert [post for post in POSTS if f"`{post}`" not in row] == []


def test_missing_options_are_listed_with_choices(write: WriteStack, stacks: Path) -> None:
    with pytest.raises(InitError) as caught:
        write(provider="azure", machine="Standard_ND96asr_v4")
    fixes = {problem.path: problem.fix for problem in caught.value.problems}
    assert set(fixes) == {"NAME", "--region", "--budget", "--count"}
    assert fixes["--region"] == "use one of eastus, italynorth, southcentralus, westeurope, westus2"


@pytest.mark.parametrize("provider", sorted(PLATFORMS))
def test_each_platform_names_its_missing_options(provider: str, write: WriteStack) -> None:
    with pytest.raises(InitError) as caught:
        write(name="new", provider=provider)
    paths = {problem.path for problem in caught.value.problems}
    with pytest.raises(InitError) as without:
        write(name="new")
    [problem] = without.value.problems
    assert f"{provider} (with {', '.join(problem.path for problem in caught.value.problems)})" in problem.fix
    assert "--machine" in paths


def test_machines_of_other_regions_are_not_offered(write: WriteStack) -> None:
    with pytest.raises(InitError) as caught:
        write(name="new", provider="azure", region="italynorth", budget="none", count="1")
    [problem] = caught.value.problems
    offered = set(problem.fix.removeprefix("use one of ").split(", "))
    usable = {name for name in machines("azure") if reason_in_the_catalog("azure", name) is None}
    assert offered == {name for name in usable if "italynorth" in PLACES["azure"][1]([name])}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"provider": "azurre"}, "--provider: .*Fix: write azure"),
        ({"provider": "azure", "region": "eastuss"}, "--region: .*Fix: write eastus"),
        (A100 | {"machine": "Standard_ND96amsr_A100_v5"}, "--machine: .*Fix: write Standard_ND96amsr_A100_v4"),
        (A100 | {"region": "northeurope"}, "--region: .*is not available in northeurope"),
        (A100 | {"count": "0"}, "--count: "),
        (A100 | {"budget": "70", "count": "4"}, r"--budget: .* is 70\. Fix: .* 132 or more, or a count of 2 or fewer"),
        (A100 | {"budget": "20", "count": "1"}, r"--budget: .* Fix: use a budget of 34 or more, or a smaller machine"),
        (
            A100 | {"machine": "h100"},
            r"--machine: .* Fix: write Standard_ND96isr_H100_v5 or Standard_",
        ),
        (A100 | {"machine": "h100", "region": "mars", "count": "two"}, r"(?s)--machine: .*--region: .*--count: "),
        ({"provider": "gcp", "machine": "a3-megagpu-8"}, r"--machine: .* Fix: write a3-megagpu-8g\."),
        ({"provider": "gcp", "machine": "a100", "region": "us-central9-a"}, "--region: .*Fix: write us-central"),
        ({"post": "lamda"}, r"--from: .*Fix: write lambda\."),
        (A100 | {"count": "two"}, "--count: must be a whole number"),
        (A100 | {"count": "9" * 5000}, "--count: must be a whole number"),
        (A100 | {"count": "300"}, "--count: .*use 200 or fewer"),
        (A100 | {"budget": "2000000"}, "--budget: "),
        (A100 | {"count": "2", "budget": "nan"}, "--budget: Input should be a finite number"),
        (A100 | {"budget": "x"}, "--budget: must be a number"),
        (A100 | {"ssh_from": "0.0.0.0/0"}, "--ssh-from: .*opens SSH"),
        (A100 | {"ssh_from": "here"}, "--ssh-from: must be an IPv4 network"),
        (A100 | {"project": "my-project-1"}, "--project: is not used with azure"),
        ({"provider": "hosts", "image": "ubuntu-24.4"}, "--image: .*Fix: write ubuntu-24.04"),
        ({"provider": "hosts", "host": "203.0.113.9"}, "--host: .*private address"),
        ({"provider": "hosts", "host": "a b"}, "--host: "),
        ({"provider": "local", "machine": "vm-gpu3"}, "--machine: .*Fix: write vm-gpu2"),
        ({"provider": "local", "name": "../x"}, "NAME: must be 1 to 16 lowercase letters"),
        ({"provider": "local", "name": "azure-a100"}, "NAME: stacks/Pulumi.azure-a100.yaml exists"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], message: str, write: WriteStack, stacks: Path) -> None:
    before = sorted(stacks.iterdir())
    with pytest.raises(InitError, match=message):
        write(**{"name": "new", **options})
    assert sorted(stacks.iterdir()) == before


def test_a_region_stands_for_its_first_zone(write: WriteStack) -> None:
    options = {"provider": "gcp", "region": "us-east4", "machine": "a3-megagpu-8g", "budget": "123456.75"}
    text = write(name="new", **OPTIONS["gcp"] | options).file.read_text()
    assert "zone: us-east4-a" in text
    assert "max_usd_per_hour: 123456.75" in text


def test_an_existing_file_needs_force(write: WriteStack, stacks: Path) -> None:
    file = stacks / "Pulumi.local.yaml"
    file.write_text(file.read_text() + "encryptionsalt: v1:abc\n")
    with pytest.raises(InitError, match="--force"):
        write(name="local", provider="local", machine="vm-gpu2", count="3")
    write(name="local", provider="local", machine="vm-gpu2", count="3", force=True)
    replaced = yaml.safe_load(file.read_text())
    assert replaced["config"]["trainyard:cluster"]["nodes"]["gpu"]["count"] == 3
    assert replaced["encryptionsalt"] == "v1:abc"


def test_a_file_that_appears_meanwhile_is_kept(
    write: WriteStack, stacks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("yard.init.answers.stack_names", lambda: [])
    before = (stacks / "Pulumi.local.yaml").read_text()
    with pytest.raises(InitError, match="exists"):
        write(name="local", provider="local", machine="vm-gpu2", count="3")
    assert (stacks / "Pulumi.local.yaml").read_text() == before


def test_hosts_get_their_scanned_keys(write: WriteStack, keyscan: None) -> None:
    new = write(name="new", **OPTIONS["hosts"], provider="hosts", machine="dgx-h100")
    listed = yaml.safe_load(new.file.read_text())["config"]["trainyard:cluster"]["platform"]["hosts"]
    assert [host["host_key"] for host in listed] == [KEY, KEY]
    assert listed[1]["port"] == 2222
    assert [key.target for key in new.keys] == ["203.0.113.10:22", "203.0.113.11:2222"]


def test_an_unreachable_host_leaves_no_file(write: WriteStack, stacks: Path, program: MakeProgram) -> None:
    program("ssh-keyscan", "exit 1")
    with pytest.raises(RemoteError, match="no sshd answers"):
        write(name="new", **OPTIONS["hosts"], provider="hosts", machine="dgx-h100")
    assert not (stacks / "Pulumi.new.yaml").exists()


def test_the_network_contains_all_hosts() -> None:
    assert str(network_of(["10.19.60.10", "10.19.60.200"])) == "10.19.60.0/24"
    assert str(network_of(["10.19.60.10", "10.19.61.11"])) == "10.19.60.0/23"
    assert str(network_of(["10.0.0.1", "10.200.0.1"])) == "10.0.0.0/12"
