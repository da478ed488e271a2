"""The questions of `yard init`. Each answer changes the text of the new stack file, which is then checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, IPv4Network
from math import ceil, floor
from pathlib import Path
from typing import Any, get_args

import typer

from components.catalog import machines
from components.plan.plan import ClusterPlan
from components.platforms import PLATFORMS
from components.platforms.azure.spec import regions_with, sizes
from components.platforms.demand import host_usd
from components.platforms.gcp.spec import zones_with
from components.platforms.hosts.spec import HostsSpec
from components.platforms.local.computer import THIS_COMPUTER
from components.spec.explain import nearest
from components.spec.model import is_private
from components.stackfile.read import parse_stack
from trainyard.errors import FileError, Problem, RuleError, StackFileError
from yard.init.stack_text import Values, cluster_section, with_values
from yard.preview.describe import known_usd
from yard.show import say
from yard.stack.workspace import stack_names

NO_LIMIT = "none"
"""The answer that sets no price limit."""
LOCAL_COMPUTER = replace(THIS_COMPUTER, used_ports=lambda plan, ports: ())
"""The ports are checked before the stack's machines start, because other clusters can be removed until then."""

_TEMPLATES = Path(__file__).parent / "templates"
_MOST_DIGITS = 9
_PLACES = {"azure": ("region", regions_with), "gcp": ("zone", zones_with)}
"""For each cloud, the key of its places in the platform section, and a function that returns the places of machines."""
_LIMIT = "cluster.limits.max_usd_per_hour"
_OPTIONS = {
    r"cluster\.access.*": "--ssh-from",
    r"cluster\.limits.*": "--budget",
    r"cluster\.name": "NAME",
    r"cluster\.platform\.image": "--image",
    r"cluster\.platform\.project": "--project",
    r"cluster\.platform\.(region|zone)": "--region",
    r"cluster\.nodes\.[^.]+\.count": "--count",
    r"cluster\.nodes\.[^.]+\.machine": "--machine",
    r"cluster\.(platform|nodes\.[^.]+)\.hosts.*": "--host",
}
"""Options by pattern of the path in the stack file. Other problems belong to the option that caused them."""
_HOST_FORMAT = "[USER@]ADDRESS[:PORT][=PRIVATE_IP]"
_HOST = re.compile(
    r"(?:(?P<user>[a-z_][a-z0-9_-]{0,31})@)?(?P<address>[A-Za-z0-9][A-Za-z0-9.-]{0,252})"
    r"(?::(?P<port>[0-9]{1,5}))?(?:=(?P<private_ip>[0-9.]{7,15}))?"
)
_SSH_PORT = 22
_ANY_KEY = f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{'A' * 43}"
"""Placeholder in the format of a host key, used until the hosts are scanned."""


class InitError(FileError):
    """Missing or invalid options of `yard init`."""

    spared = "written"

    def __init__(self, *problems: Problem) -> None:
        super().__init__("yard init", problems)


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question about a value of a new stack, which `option` can also set. `text` describes the value."""

    key: str
    option: str
    text: str
    platforms: tuple[str, ...] = tuple(PLATFORMS)
    default: str | None = None
    """The value for an empty answer at the prompt, or None if an answer is required."""
    optional: bool = False
    """Whether the default also applies without a prompt."""


_CLOUDS = tuple(_PLACES)
QUESTIONS = (
    Question(key="name", option="NAME", text="Name of the stack and the cluster"),
    Question(key="provider", option="--provider", text="Platform"),
    Question(key="project", option="--project", text="Id of the Google Cloud project", platforms=("gcp",)),
    Question(key="image", option="--image", text="Operating system of the hosts", platforms=("hosts",)),
    Question(key="machine", option="--machine", text="Machine type of the nodes"),
    Question(key="region", option="--region", text="Region or zone", platforms=_CLOUDS),
    Question(key="host", option="--host", text=f"Hosts as {_HOST_FORMAT}, the head first", platforms=("hosts",)),
    Question(key="count", option="--count", text="Number of nodes", platforms=(*_CLOUDS, "local"), default="2"),
    Question(
        key="budget",
        option="--budget",
        text=f"Maximum list price in US dollars per hour, or {NO_LIMIT}",
        platforms=_CLOUDS,
    ),
    Question(
        key="ssh_from",
        option="--ssh-from",
        text="Networks that may connect over SSH, such as your public address as a /32. Empty: the cloud's SSH gateway",
        platforms=_CLOUDS,
        default="",
        optional=True,
    ),
)


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A new stack file with the answers so far. It is always complete, because it starts from a template or a copy.

    `copied`: whether the text is a copy of another stack, whose comments describe that stack's values. `force`: whether
    an existing file may be replaced.
    """

    text: str = ""
    answers: Mapping[str, str] = field(default_factory=dict)
    copied: bool = False
    force: bool = False

    @property
    def provider(self) -> str:
        """The platform, or an empty text if it is not known yet."""
        return self.answers.get("provider", "")

    @property
    def section(self) -> dict[str, Any]:
        """The cluster section."""
        return cluster_section(self.text)

    @property
    def group_name(self) -> str:
        """The name of the first node group."""
        return str(next(iter(self.section["nodes"])))

    @property
    def group(self) -> dict[str, Any]:
        """The section of the first node group."""
        return dict(self.section["nodes"][self.group_name])

    def plan(self) -> ClusterPlan:
        """Return the plan. Raises StackFileError."""
        return parse_stack(self.text, "the new stack", LOCAL_COMPUTER).plan

    def with_values(self, values: Values) -> Draft:
        """Return a draft with other values in the cluster section."""
        return replace(self, text=with_values(self.text, values, keep_comments=not self.copied))

    def with_answer(self, key: str, answer: str) -> Draft:
        """Return a draft with one more answer. Raises RuleError if the file cannot contain the answer."""
        new = replace(self, answers={**self.answers, key: answer})
        match key:
            case "name":
                if answer in stack_names() and not self.force:
                    fix = "choose a different name, or replace it with --force"
                    raise RuleError(f"stacks/Pulumi.{answer}.yaml exists", fix)
                values: Values = {("name",): answer} if self.text else {}
            case "provider":
                if answer not in PLATFORMS:
                    raise RuleError("must be a known platform", f"write {_similar(answer, tuple(PLATFORMS))}")
                new = replace(new, text=(_TEMPLATES / f"{answer}.yaml").read_text())
                values = {("name",): self.answers.get("name", "new")}
            case "machine":
                values = _machine(new, answer)
            case "region":
                place, places_of = _PLACES[self.provider]
                # A region is replaced by its first zone that offers the machine type.
                zones = (each for each in places_of([self.group["machine"]]) if each.rpartition("-")[0] == answer)
                values = {("platform", place): next(zones, answer)}
            case "count":
                if not answer.isdecimal() or len(answer) > _MOST_DIGITS:
                    raise RuleError("must be a whole number", "write for example 2")
                values = {("nodes", self.group_name, "count"): int(answer)}
            case "budget":
                values = {("limits",): _limit(answer)}
            case "ssh_from":
                networks = answer.replace(",", " ").split()
                values = {
                    ("access",): {"allow_ssh_from": networks, "via": "public"} if networks else {"via": "bastion"}
                }
            case "host":
                values = host_values(self.section, parse_hosts(answer), {})
            case _:
                values = {("platform", key): answer}
        return new.with_values(values)


def _similar(word: str, known: Sequence[str]) -> str:
    return nearest(word, known) or " or ".join(known)


def _machine(draft: Draft, machine: str) -> Values:
    """Return the changes for another machine type of the nodes. Raises RuleError for the name of a GPU."""
    if with_gpu := [name for name, found in machines(draft.provider).items() if found.gpu_type == machine.lower()]:
        raise RuleError("must be a machine type, not a GPU", f"write {' or '.join(with_gpu)}")
    group: tuple[str, ...] = ("nodes", draft.group_name)
    if draft.group["machine"] == machine:
        return {}
    if draft.provider not in _PLACES:
        # On existing hosts, the head can be one of the nodes.
        head = draft.section["head"]
        same = head.get("host") in draft.group.get("hosts", ())
        values: Values = {(*group, "machine"): machine}
        return {**values, ("head", "machine"): machine} if same else values
    # Other placements on Azure prevent the use of InfiniBand. Capacity for compact placement on Google Cloud is scarce.
    fabric = draft.provider == "azure" and machine in sizes() and sizes()[machine].largest_fabric is not None
    placement = "same_fabric" if fabric else "none"
    place, places_of = _PLACES[draft.provider]
    values = {group: {"machine": machine, "count": draft.group["count"], "placement": placement}}
    return values if "region" in draft.answers else {**values, ("platform", place): places_of([machine])[0]}


def _limit(answer: str) -> dict[str, float] | None:
    if answer == NO_LIMIT:
        return None
    try:
        usd = float(answer)
    except ValueError:
        rule = "must be a number of US dollars per hour"
        raise RuleError(rule, f"write a number such as 80, or {NO_LIMIT}") from None
    return {"max_usd_per_hour": int(usd) if usd.is_integer() else usd}


@dataclass(frozen=True, kw_only=True)
class NewHost:
    """An existing host as given by the user. `target` is ADDRESS:PORT."""

    user: str
    address: str
    port: int
    private_ip: str

    @property
    def target(self) -> str:
        return f"{self.address}:{self.port}"


def parse_hosts(text: str) -> list[NewHost]:
    """Return the hosts in an answer. The first host becomes the head. Raises RuleError."""
    return [_parse_host(word) for word in text.replace(",", " ").split()]


def _parse_host(text: str) -> NewHost:
    found = _HOST.fullmatch(text)
    if found is None:
        raise RuleError(f"'{text}' must be {_HOST_FORMAT}", "write for example ubuntu@203.0.113.10=10.0.0.10")
    private_ip = found["private_ip"] or found["address"]
    try:
        private = is_private(IPv4Network(IPv4Address(private_ip)))
    except ValueError:
        private = False
    if not private:
        rule = f"{text}: the private address of the host is unknown, or it is not in a private range"
        fix = f"add it: {text.partition('=')[0]}=10.0.0.10; `ip -4 address` on the host prints its addresses"
        raise RuleError(rule, fix)
    port = int(found["port"] or _SSH_PORT)
    return NewHost(user=found["user"] or "root", address=found["address"], port=port, private_ip=private_ip)


def host_values(section: Mapping[str, Any], hosts: Sequence[NewHost], keys: Mapping[str, str]) -> Values:
    """Return the changes for other hosts. `keys` contains the host keys by target.

    If the head of `section` is not one of its nodes, the first host does not become a node. If SSH connections to its
    nodes go through its head, they also go through the first host.
    """
    (group, nodes), *_ = section["nodes"].items()
    own_head = section["head"]["host"] not in nodes["hosts"]
    names = [f"{section['name']}-{number}" for number in range(1, len(hosts) + 1)]
    jump = {"proxy_jump": names[0]} if behind_head(section) else {}
    rows = [
        {
            "name": name,
            "address": host.address,
            **({"port": host.port} if host.port != _SSH_PORT else {}),
            **({"user": host.user} if host.user != hosts[0].user else {}),
            **(jump if name != names[0] else {}),
            "private_ip": host.private_ip,
            "host_key": keys.get(host.target, _ANY_KEY),
        }
        for name, host in zip(names, hosts, strict=True)
    ]
    return {
        ("platform", "user"): hosts[0].user,
        ("platform", "hosts"): rows,
        ("network", "cidr"): str(network_of([host.private_ip for host in hosts])),
        ("head", "host"): names[0],
        ("nodes", group): {"machine": nodes["machine"], "hosts": names[1:] if own_head else names},
    }


def behind_head(section: Mapping[str, Any]) -> bool:
    """Return whether SSH connections to the nodes of a stack go through its head."""
    return any("proxy_jump" in host for host in section["platform"]["hosts"])


def network_of(addresses: Sequence[str]) -> IPv4Network:
    """Return the smallest network from /24 to /12 that contains all addresses, or the first host's /12 if none does."""
    networks = (IPv4Network(f"{addresses[0]}/{prefix}", strict=False) for prefix in range(24, 12, -1))
    found = (each for each in networks if all(IPv4Address(address) in each for address in addresses))
    return next(found, IPv4Network(f"{addresses[0]}/12", strict=False))


def collect(options: Mapping[str, str], draft: Draft, *, prompt: bool) -> Draft:
    """Return the draft with all answers. `options` contains the given options by key.

    If `prompt` is true, missing answers are asked. Raises InitError with all problems.
    """
    problems = list[Problem]()
    # The other questions depend on the platform, and the choices of a question depend on the given options.
    for question in sorted(QUESTIONS, key=lambda each: each.key not in {"name", "provider", *options}):
        if question.key in options:
            draft, found = _given(question, options[question.key], draft)
            problems += found
        elif question.key in draft.answers or (draft.provider and draft.provider not in question.platforms):
            continue
        elif question.optional and not prompt:
            draft = draft.with_answer(question.key, question.default or "")
        elif prompt and not problems:
            draft = _ask(question, draft)
        else:
            problems.append(_missing(question, draft))
        if question.key == "provider" and not draft.provider:
            break
    if problems:
        raise InitError(*problems)
    return draft


def _given(question: Question, text: str, draft: Draft) -> tuple[Draft, list[Problem]]:
    """Return the draft with the value of an option, or the unchanged draft and the problems with the value."""
    if question.key == "provider" and draft.provider not in {"", text}:
        rule, fix = f"the stack of --from is for {draft.provider}", "remove it, or start without --from"
    elif draft.provider and draft.provider not in question.platforms:
        rule, fix = f"is not used with {draft.provider}", "remove it"
    else:
        return _checked(question, text, draft)
    return draft, [Problem(path=question.option, rule=rule, fix=fix)]


def _checked(question: Question, text: str, draft: Draft) -> tuple[Draft, list[Problem]]:
    """Return the draft with the answer, or the unchanged draft and the problems with the answer."""
    try:
        new = draft.with_answer(question.key, text)
    except RuleError as error:
        return draft, [Problem(path=question.option, rule=error.rule, fix=error.fix)]
    # Until the platform is known, the name is checked in a local stack, which requires no other values.
    problems = problems_of(new if new.text else new.with_answer("provider", "local"), question.option)
    return (draft, problems) if problems else (new, [])


def problems_of(draft: Draft, option: str = "") -> list[Problem]:
    """Return the problems of the stack file. Each path names the option that sets the value, or is `option`."""
    try:
        draft.plan()
    except StackFileError as error:
        over_budget = [each.path for each in error.problems] == [_LIMIT]
        if over_budget and (fix := _affordable(draft)):
            return [Problem(path=option, rule=error.problems[0].rule, fix=fix)]
        return [replace(each, path=_option(each.path, option)) for each in error.problems]
    return []


def _option(path: str, option: str) -> str:
    return next((name for pattern, name in _OPTIONS.items() if re.fullmatch(pattern, path)), option)


def _affordable(draft: Draft) -> str | None:
    """Return the largest count and the smallest budget that are possible, or None if the price is not the problem."""
    budget = draft.section["limits"]["max_usd_per_hour"]
    plan = draft.with_values({("limits",): None}).plan()
    node, usd = host_usd(plan.workers[0]) or 0, known_usd(plan)
    if not usd > budget:
        return None
    largest = floor((budget - usd) / node + 1e-9) + len(plan.workers) if node else 0
    machine = f"a count of {largest} or fewer" if largest > 0 else "a smaller machine"
    return f"use a budget of {ceil(usd)} or more, or {machine}"


def _choices(question: Question, draft: Draft) -> Sequence[str]:
    """Return the valid answers, or nothing if there are too many."""
    match question.key:
        case "provider":
            return tuple(PLATFORMS)
        case "image":
            return get_args(HostsSpec.model_fields["image"].annotation)
        case "machine":
            usable = [name for name in machines(draft.provider) if not problems_of(draft.with_answer("machine", name))]
            return sorted(usable, key=lambda name: not machines(draft.provider)[name].gpus)
        case "region":
            return _PLACES[draft.provider][1]([draft.group["machine"]])
    return ()


def _missing(question: Question, draft: Draft) -> Problem:
    choices = _choices(question, draft)
    if question.key == "provider":
        # The other required options depend on the platform, so each platform in the fix is followed by its options.
        required = {
            name: [each.option for each in QUESTIONS[2:] if name in each.platforms and not each.optional]
            for name in choices
        }
        choices = [f"{name} (with {', '.join(options)})" for name, options in required.items()]
    fix = f"use one of {', '.join(choices)}" if choices else f"add it: {question.text}"
    return Problem(path=question.option, rule="is missing", fix=fix)


def _ask(question: Question, draft: Draft) -> Draft:
    """Prompt until the answer is valid. A choice can be given by its number or its name."""
    choices = _choices(question, draft)
    for number, choice in enumerate(choices, start=1):
        say(f"{number:>4}  {_label(question, draft, choice)}")
    if question.key == "budget":
        say(f"  known list prices with {len(draft.plan().workers)} nodes: ${known_usd(draft.plan()):.2f}/h")

    def checked(text: str) -> Draft:
        by_number = text.isdecimal() and 0 < int(text) <= len(choices)
        new, problems = _checked(question, choices[int(text) - 1] if by_number else text, draft)
        if problems:
            raise typer.BadParameter("\n".join(f"{each.rule}. Fix: {each.fix}" for each in problems))
        return new

    text = question.text + (" (number or name)" if choices else "")
    answered: Draft = typer.prompt(
        text, default=question.default, value_proc=checked, show_default=bool(question.default)
    )
    return answered


def _label(question: Question, draft: Draft, choice: str) -> str:
    """Return a choice, with a machine type's GPUs, fabric and list price."""
    if question.key != "machine":
        return choice
    machine = machines(draft.provider)[choice]
    gpus = f"{machine.gpus} x {machine.gpu_type}" if machine.gpus else "no GPUs"
    price = "price unknown" if machine.usd_per_hour is None else f"list price ${machine.usd_per_hour:.2f}/h"
    return ", ".join([f"{choice}: {gpus}", machine.fabric, *([price] if draft.provider in _PLACES else [])])
