"""`yard init`: stack files for every machine type and post, refusals, prompts, and the use of the clouds' CLIs."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from components.catalog import machines
from components.plan.check import Computer
from components.platforms import PLATFORMS
from components.platforms.azure.spec import size_of
from components.platforms.gcp.spec import family_of
from components.stackfile.read import read_stack
from tests.conftest import ROOT
from tests.yard.conftest import MakeProgram, printed, refused, use_root, yard
from trainyard.errors import RemoteError
from yard.init import new_project
from yard.init.answers import _PLACES as PLACES
from yard.init.answers import InitError, network_of
from yard.init.new_stack import NewStack, init, posts, show
from yard.preview.describe import describe
from yard.preview.printing import NOT_INCLUDED

WriteStack = Callable[..., NewStack]


@pytest.fixture
def stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of stack files in a temporary checkout, which contains the committed stack files."""
    root = tmp_path / "checkout"
    shutil.copytree(ROOT / "stacks", root / "stacks")
    shutil.copy(ROOT / "Pulumi.yaml", root)
    use_root(root, monkeypatch)
    computer = Computer(free_memory=lambda plan: 1 << 20, used_ports=lambda plan, ports: ())
    for module in ("answers", "new_stack"):
        monkeypatch.setattr(f"yard.init.{module}.LOCAL_COMPUTER", computer)
    return root / "stacks"


@pytest.fixture
def write(stacks: Path) -> WriteStack:
    """Return a function that runs `yard init` without a cloud's CLI. Its keywords are options."""

    def run(post: str | None = None, *, force: bool = False, prompt: bool = False, **options: str) -> NewStack:
        return init(options, post=post, force=force, offline=True, prompt=prompt)

    return run


def section(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(file.read_text())["config"]["trainyard:cluster"]
    return found


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
    program("ssh-keyscan", f"echo 'host {KEY}'")
    program("ssh", f"echo 'host {KEY}'")
    program("ssh-keygen", "echo '256 SHA256:fingerprint no comment (ED25519)'")


def passes(new: NewStack) -> None:
    described = describe("new")
    assert described.plan is not None
    assert described.findings == new.report.description.findings
    assert list(new.file.parent.glob("*.new")) == []
    assert "--preserve-config" in new.file.read_text()


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


def test_the_file_of_a_post_keeps_its_values(write: WriteStack, stacks: Path) -> None:
    new = write("deepspeed-azure", name="new").file
    assert section(new) == section(stacks / "Pulumi.azure-h100.yaml") | {"name": "new"}
    assert new.read_text().startswith("# yaml-language-server: $schema=schema.json\n# Written by yard on 20")
    assert " from stacks/Pulumi.azure-h100.yaml. " in new.read_text()


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
    with pytest.raises(InitError) as caught:
        write(provider="gcp")
    [zones] = [problem.fix for problem in caught.value.problems if problem.path == "--region"]
    assert re.fullmatch(r"use one of (\S+, ){15}\S+ or one of \d+ others", zones)


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
        (A100 | {"budget": "70", "count": "4"}, "--budget: .* cost 132.36 .* is 70. Fix: use fewer or smaller"),
        (A100 | {"machine": "h100"}, r"--machine: .* Fix: write Standard_ND96isr_H100_v5 or Standard_"),
        (A100 | {"machine": "h100", "region": "mars", "count": "two"}, r"(?s)--machine: .*--region: .*--count: "),
        ({"provider": "gcp", "machine": "a100", "region": "us-central9-a"}, "--region: .*Fix: write us-central"),
        ({"post": "lamda"}, r"--from: .*Fix: write lambda\."),
        (A100 | {"count": "two"}, "--count: must be a whole number"),
        (A100 | {"count": "9" * 5000}, "--count: must be a whole number"),
        (A100 | {"count": "300"}, "--count: .*use 200 or fewer"),
        (A100 | {"budget": "2000000"}, "--budget: "),
        (A100 | {"count": "2", "budget": "nan"}, "--budget: Input should be a finite number"),
        (A100 | {"budget": "x"}, "--budget: must be a number"),
        (A100 | {"budget_per_month": "much"}, "--budget-per-month: must be a number"),
        (A100 | {"count": "2", "budget_per_month": "0"}, "--budget-per-month: must be a whole number"),
        (A100 | {"ssh_from": "0.0.0.0/0"}, "--ssh-from: .*opens SSH"),
        (A100 | {"ssh_from": "here"}, "--ssh-from: must be an IPv4 network"),
        (A100 | {"project": "my-project-1"}, "--project: is not used with azure"),
        ({"provider": "hosts", "image": "ubuntu-24.4"}, "--image: .*Fix: write ubuntu-24.04"),
        ({"provider": "hosts", "host": "203.0.113.9"}, "--host: .*private address"),
        ({"provider": "hosts", "host": "a b"}, "--host: "),
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


def test_an_existing_file_needs_force(write: WriteStack, stacks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = stacks / "Pulumi.local.yaml"
    before = file.read_text() + "encryptionsalt: v1:abc\n"
    file.write_text(before)
    options = {"name": "local", "provider": "local", "machine": "vm-gpu2", "count": "3"}
    # The second time, the file appears after the answers have been checked.
    for names in (["local"], []):
        monkeypatch.setattr("yard.init.answers.stack_names", lambda found=names: found)
        with pytest.raises(InitError, match=r"exists\. Fix: edit it, choose a different name, or"):
            write(**options)
        assert file.read_text() == before
    write(force=True, **options)
    assert section(file)["nodes"]["gpu"]["count"] == 3
    assert yaml.safe_load(file.read_text())["encryptionsalt"] == "v1:abc"


def test_hosts_get_their_scanned_keys(write: WriteStack, keyscan: None, stacks: Path, program: MakeProgram) -> None:
    options = {"name": "new", "provider": "hosts", "machine": "dgx-h100", **OPTIONS["hosts"]}
    new = write(**options)
    listed = section(new.file)["platform"]["hosts"]
    assert [host["host_key"] for host in listed] == [KEY, KEY]
    assert listed[1]["port"] == 2222
    assert [key.target for key in new.keys] == ["203.0.113.10:22", "203.0.113.11:2222"]
    program("ssh-keyscan", "exit 1")
    with pytest.raises(RemoteError, match="no sshd answers"):
        write(**{**options, "name": "unreachable"})
    assert not (stacks / "Pulumi.unreachable.yaml").exists()


def test_the_network_contains_all_hosts() -> None:
    assert str(network_of(["10.19.60.10", "10.19.60.200"])) == "10.19.60.0/24"
    assert str(network_of(["10.19.60.10", "10.19.61.11"])) == "10.19.60.0/23"
    assert str(network_of(["10.0.0.1", "10.200.0.1"])) == "10.0.0.0/12"


COMPLETE = ("init", "new", "--count=2", "--budget=70", *(f"--{key}={value}" for key, value in A100.items()))


def answer(monkeypatch: pytest.MonkeyPatch, *answers: str) -> None:
    left = iter(answers)
    monkeypatch.setattr("typer._click.termui.visible_prompt_func", lambda text: next(left))


def test_the_price_and_the_next_commands_are_printed(stacks: Path) -> None:
    out = printed(*COMPLETE, "--ssh-from", "203.0.113.0/24", "--offline")
    assert "wrote stacks/Pulumi.new.yaml\nstack new: 3 hosts, 16 GPUs, list price $66.32/h\n" in out
    assert "203.0.113.0/24 is reserved for documentation (RFC 5737)" in out
    assert "list prices of eastus, read on 2026-" in out
    assert f"through NAT $0.045 per GB), {NOT_INCLUDED}\n" in out
    assert "note: no stack has been created on a real Azure or Google Cloud yet" in out
    commands = ("yard preview new", "az login", "pulumi stack select --create new", "pulumi up -s new")
    assert out.endswith("\n  ".join(("next:", *commands, "yard submit hello --stack new --follow\n")))


def test_a_monthly_limit_needs_no_hourly_one(write: WriteStack) -> None:
    new = write(**A100, name="new", count="2", budget_per_month="20000", ssh_from="198.51.100.0/24")
    assert section(new.file)["limits"] == {"max_usd_per_month": 20_000}


def test_a_clone_offers_a_rehearsal_for_clouds(stacks: Path) -> None:
    (stacks.parent / "tools").mkdir()
    (stacks.parent / "tools" / "stack.py").touch()
    assert "  yard preview new\n  python -m tools.stack up new --offline\n  az login\n" in printed(
        *COMPLETE, "--offline"
    )


def test_json_contains_the_same_facts(stacks: Path) -> None:
    code, out, _ = yard(*COMPLETE, "--offline", "--json")
    document = json.loads(out)
    assert (code, document["price"]["usd"], document["price"]["regions"]) == (0, 65.924, ["eastus"])
    assert (document["next"][0], document["account"]) == ("yard preview new", None)
    code, out, err = yard("init", "more", "--provider", "azure", "--json")
    assert (code, err) == (1, "")
    assert "4 problems in yard init; nothing was written." in json.loads(out)["error"]


def test_it_needs_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_root(tmp_path, monkeypatch)
    assert "`yard init` needs a Pulumi project" in refused(*COMPLETE)


def test_a_new_project_reports_all_problems_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / ".github" / "workflows").mkdir(parents=True)
    for name in ("Pulumi.yaml", ".github/workflows/preview.yml"):
        (tmp_path / name).write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    err = refused("new", "big", "--dir", str(tmp_path), "--provider", "gcp", "--machine", "a3-higpu-8g", "--count", "x")
    problems = ("Pulumi.yaml: exists", "workflows/preview.yml: exists", "--machine: must be", "--project: is missing")
    expected = ("problems in yard new; nothing was written", *problems, "--count: must be a whole number")
    assert [text for text in expected if text not in err] == []
    assert sorted(tmp_path.rglob("*")) == before


def test_a_new_project_keeps_a_readme_and_a_gitignore(tmp_path: Path) -> None:
    own = {"README.md": "mine\n", ".gitignore": "*.o\n/.venv\n"}
    for name, text in own.items():
        (tmp_path / name).write_text(text)
    words = [word for key, answer in {**A100, **OPTIONS["azure"]}.items() for word in (f"--{key}", answer)]
    code, out, err = yard("new", "big", "--dir", str(tmp_path), "--offline", *words)
    assert code == 0, err
    assert "README.md exists and was not changed\n" in err
    assert ".gitignore exists and was not changed; add these lines: /.trainyard __pycache__/\n" in err
    assert "wrote " + str(tmp_path / "Pulumi.yaml") in out
    assert {name: (tmp_path / name).read_text() for name in own} == own


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device", "file")])
def test_an_interrupted_project_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    written: list[Path] = []
    write_text = Path.open

    def failing(path: Path, mode: str = "r", **more: Any) -> Any:
        if mode == "x" and path.name == "schema.json":
            raise error
        written.extend([path] if mode == "x" else [])
        return write_text(path, mode, **more)

    monkeypatch.setattr(Path, "open", failing)
    (tmp_path / ".github").mkdir()
    with pytest.raises((KeyboardInterrupt, InitError)):
        new_project.new({"name": "big", **A100, **OPTIONS["azure"]}, tmp_path, post=None, offline=True, prompt=False)
    assert len(written) > 5
    assert list(tmp_path.rglob("*")) == [tmp_path / ".github"]


def test_this_repository_is_a_project_like_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    files = new_project.project_files("trainyard")
    assert files["__main__.py"] == (ROOT / "__main__.py").read_text()
    here, new = (yaml.safe_load(text) for text in ((ROOT / "Pulumi.yaml").read_text(), files["Pulumi.yaml"]))
    assert here | {"description": ""} == new | {"description": ""}
    pinned = (ROOT / "yard" / "init" / "project" / "requirements.txt").read_text().splitlines()[-1]
    assert pinned == f"trainyard=={tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']['version']}"
    assert files["requirements.txt"].splitlines()[-1] == pinned
    origin = {"url": "https://example.test/trainyard", "vcs_info": {"vcs": "git", "commit_id": "a" * 40}}
    installed = SimpleNamespace(version="9", read_text=lambda name: json.dumps(origin))
    monkeypatch.setattr(new_project, "distribution", lambda name: installed)
    pinned = new_project.project_files("x")["requirements.txt"].splitlines()[-1]
    assert pinned == f"trainyard @ git+https://example.test/trainyard@{'a' * 40}"


def test_missing_values_are_asked_until_they_are_valid(
    write: WriteStack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("Bad", "new", "1", "", "Standard_ND96asr_v5", "1", "westus9", "", "x", "", "50", "60", "many", "20000", "")
    answer(monkeypatch, *given)
    new = write(prompt=True)
    gpu = {"machine": "Standard_ND96asr_v4", "count": 2, "placement": "same_fabric"}
    assert section(new.file)["nodes"] == {"gpu": gpu}
    assert section(new.file)["platform"]["region"] == "eastus"
    assert section(new.file)["limits"] == {"max_usd_per_hour": 60, "max_usd_per_month": 20_000}
    assert new.file.name == "Pulumi.new.yaml"
    show(new)
    shown = capsys.readouterr().out
    for text in (
        "cost limit: $60 per hour and $20,000 per month; if all machines are on, the month's is spent after 15.0 days",
        "Error: must be 1 to 16 lowercase letters",
        "Error: must be the name of a machine type",  # an empty answer
        "Error: must be a machine type of the platform azure. Fix: write Standard_ND96asr_v4",
        "Standard_ND96asr_v4: 8 x a100, infiniband-hdr, list price $27.20/h",
        "Fix: write westus2",
        "Error: must be a whole number",
        "known list prices with 2 nodes: $55.57/h\n",
        "the limit is 50. Fix: use fewer or smaller machines, or raise the limit",
    ):
        assert text in shown
    order = ("Name of", "Platform", "Machine type", "Region", "Number of nodes", "Maximum list price", "Networks")
    assert sorted(order, key=shown.index) == list(order)


def test_given_options_are_not_asked(
    write: WriteStack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"name": "new", "provider": "azure", "region": "eastus", "machine": "Standard_ND96asr_v4"}
    answer(monkeypatch)
    with pytest.raises(InitError, match=r"--count: must be a whole number"):
        write(prompt=True, count="two", **options)
    answer(monkeypatch, "2", "", "203.0.113.0/24")
    new = write(prompt=True, budget="none", **options)
    assert section(new.file)["access"] == {"allow_ssh_from": ["203.0.113.0/24"], "via": "public"}
    shown = capsys.readouterr().out
    assert "Number of nodes [2]" in shown
    assert "Machine type" not in shown


@pytest.mark.engine
def test_ctrl_c_at_a_prompt_leaves_no_file() -> None:
    before = sorted((ROOT / "stacks").iterdir())
    leader, follower = pty.openpty()
    # A shell starts background commands with SIGINT ignored. `env` restores the default action.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "yard", "init", "new", "--provider", "local"]
    with subprocess.Popen(command, cwd=ROOT, stdin=follower, stdout=follower, stderr=follower) as process:
        try:
            shown = b""
            while b"Machine type of the nodes" not in shown:
                shown += os.read(leader, 4096)
            # input() misses a SIGINT between its prompt and its read() (measured with CPython 3.11 on a busy machine),
            # so the test presses Ctrl-C again like a user.
            for _ in range(12):
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=5)
                    break
            assert process.wait(timeout=1) == 130
        finally:
            process.kill()
            os.close(follower)
            os.close(leader)
    assert sorted((ROOT / "stacks").iterdir()) == before


def test_quotas_are_read_with_the_cli(stacks: Path, program: MakeProgram) -> None:
    usage = [{"currentValue": "0", "limit": "100", "name": {"value": "cores"}}]
    az = program("az", f"case \"$*\" in vm\\ list-usage*) echo '{json.dumps(usage)}';; *) echo '[]';; esac")
    code, out, err = yard(*COMPLETE)
    assert code == 0
    assert "reading quotas" in err
    assert "short by 100" in out
    assert "eastus does not offer Standard_ND96amsr_A100_v4" in out
    # Only these CLI calls are made, and all of them only read data.
    allowed = {"network list-usages", "provider list", "vm image", "vm list-skus", "vm list-usage"}
    assert {" ".join(call.split()[:2]) for call in az.calls} == allowed


@pytest.mark.parametrize("body", ["echo 'run az login' >&2; exit 1", "exec sleep 60", "echo nonsense"])
def test_a_failing_cli_is_only_a_note(
    body: str, stacks: Path, program: MakeProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("yard.init.new_stack._SECONDS", 0.5)
    program("az", body)
    assert "note: quotas were not checked, because the account could not be read: az " in printed(*COMPLETE)
    assert (stacks / "Pulumi.new.yaml").exists()
