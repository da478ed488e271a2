"""The questions of `yard init`. Each answer changes the draft of a stack file, and the draft is then checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any, get_args

import typer
import yaml

from components.catalog import machines
from components.plan.plan import ClusterPlan
from components.platforms import PLATFORMS
from components.platforms.azure.spec import regions_with, sizes
from components.platforms.demand import known_usd, unpriced
from components.platforms.gcp.spec import zones_with
from components.platforms.hosts.spec import HostsSpec
from components.platforms.local.computer import THIS_COMPUTER
from components.spec.explain import nearest
from components.spec.model import is_private
from components.stackfile.read import CLUSTER_KEY, parse_stack
from trainyard.errors import FileError, Problem, RuleError, StackFileError
from trainyard.project import stack_file
from yard.show import say
from yard.stack.workspace import stack_names

NO_LIMIT = "none"
"""The answer that sets no price limit."""
LOCAL_COMPUTER = replace(THIS_COMPUTER, used_ports=lambda plan, ports: ())
"""Used ports are ignored, because the clusters that use them can be removed before this stack's machines start."""
Values = Mapping[tuple[str, ...], Any]
"""Mapping from keys in the cluster section, such as ("platform", "region"), to new values. None removes a key."""

_TEMPLATES = Path(__file__).parent / "templates"
_MOST_DIGITS = 9
_PLACES = {"azure": ("region", regions_with), "gcp": ("zone", zones_with)}
"""Each cloud's key for its location, and a function that returns the locations with all given machine types."""
_OPTIONS = {
    r"cluster\.access.*": "--ssh-from",
    r"cluster\.limits\.max_usd_per_month": "--budget-per-month",
    r"cluster\.limits.*": "--budget",
    r"cluster\.name": "NAME",
    r"cluster\.platform\.image": "--image",
    r"cluster\.platform\.project": "--project",
    r"cluster\.platform\.(region|zone)": "--region",
    r"cluster\.nodes\.[^.]+\.count": "--count",
    r"cluster\.nodes\.[^.]+\.machine": "--machine",
    r"cluster\.(platform|nodes\.[^.]+)\.hosts.*": "--host",
}
"""Mapping from paths in the stack file to options. A problem at another path belongs to the option being checked."""
_HOST_FORMAT = "[USER@]ADDRESS[:PORT][=PRIVATE_IP]"
_HOST = re.compile(
    r"(?:(?P<user>[a-z_][a-z0-9_-]{0,31})@)?(?P<address>[A-Za-z0-9][A-Za-z0-9.-]{0,252})"
    r"(?::(?P<port>[0-9]{1,5}))?(?:=(?P<private_ip>[0-9.]{7,15}))?"
)
_SSH_PORT = 22
_ANY_KEY = f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{'A' * 43}"
"""Placeholder for the host keys until the hosts are scanned."""


class InitError(FileError):
    """Options of `yard init` or `yard new` are missing or invalid."""

    spared = "written"

    def __init__(self, *problems: Problem, command: str = "yard init") -> None:
        super().__init__(command, problems)


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question whose answer can also be given with `option`."""

    key: str
    option: str
    text: str
    platforms: tuple[str, ...] = tuple(PLATFORMS)
    default: str | None = None
    """The value of an empty answer at the prompt, or None if an answer is required."""
    optional: bool = False
    """Whether the default also applies without a prompt."""
    instead: str = ""
    """The key of a question whose option makes this question optional, or ""."""


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
        instead="budget_per_month",
    ),
    Question(
        key="budget_per_month",
        option="--budget-per-month",
        text="US dollars per calendar month after which no more jobs start. Empty: no limit",
        platforms=_CLOUDS,
        default="",
        optional=True,
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
class StackDraft:
    """The cluster section of a new stack file, and the answers so far.

    The section is empty until the platform is known. From then on it is complete, because it starts as a template or as
    a copy of another stack's section. If `force` is set, the new file is allowed to replace an existing one.
    """

    section: dict[str, Any] = field(default_factory=dict)
    answers: Mapping[str, str] = field(default_factory=dict)
    force: bool = False

    @property
    def provider(self) -> str:
        return self.answers.get("provider", "")

    @property
    def text(self) -> str:
        return yaml.safe_dump({"config": {CLUSTER_KEY: self.section}}, sort_keys=False, width=120)

    @property
    def group_name(self) -> str:
        return str(next(iter(self.section["nodes"])))

    @property
    def group(self) -> dict[str, Any]:
        return dict(self.section["nodes"][self.group_name])

    def plan(self) -> ClusterPlan:
        """Return the plan. Raises StackFileError."""
        return parse_stack(self.text, "the new stack", LOCAL_COMPUTER).plan

    def with_values(self, values: Values) -> StackDraft:
        section = deepcopy(self.section)
        for (*parents, key), value in values.items():
            place = section
            for parent in parents:
                place = place[parent]
            if value is None:
                place.pop(key, None)
            else:
                place[key] = value
        return replace(self, section=section)

    def with_answer(self, key: str, answer: str) -> StackDraft:
        """Return a draft with one more answer. Raises RuleError if the answer cannot be written to the file."""
        new = replace(self, answers={**self.answers, key: answer})
        match key:
            case "name":
                if answer in stack_names() and not self.force:
                    fix = "edit it, choose a different name, or replace it with --force"
                    raise RuleError(f"{stack_file(answer)} exists", fix)
                values: Values = {("name",): answer} if self.section else {}
            case "provider":
                if answer not in PLATFORMS:
                    raise RuleError("must be a known platform", f"write {_similar(answer, tuple(PLATFORMS))}")
                new = replace(new, section=yaml.safe_load((_TEMPLATES / f"{answer}.yaml").read_text()))
                values = {("name",): self.answers.get("name", "new")}
            case "machine":
                values = _machine(new, answer)
            case "region":
                place, places_of = _PLACES[self.provider]
                # A region on Google Cloud is replaced by its first zone that has the machine type.
                zones = (each for each in places_of([self.group["machine"]]) if each.rpartition("-")[0] == answer)
                values = {("platform", place): next(zones, answer)}
            case "count":
                if not answer.isdecimal() or len(answer) > _MOST_DIGITS:
                    raise RuleError("must be a whole number", "write for example 2")
                values = {("nodes", self.group_name, "count"): int(answer)}
            case "budget" | "budget_per_month":
                limit = "max_usd_per_hour" if key == "budget" else "max_usd_per_month"
                values = self._limit(limit, None if answer in {"", NO_LIMIT} else _usd(answer))
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

    def _limit(self, key: str, usd: float | None) -> Values:
        """Return the limits with this one. None removes it."""
        limits = {**self.section.get("limits", {}), key: usd}
        return {("limits",): {name: value for name, value in limits.items() if value is not None} or None}


def _similar(word: str, known: Sequence[str]) -> str:
    return nearest(word, known) or " or ".join(known)


def _machine(draft: StackDraft, machine: str) -> Values:
    """Return the changes for a different machine type."""
    group: tuple[str, ...] = ("nodes", draft.group_name)
    if draft.group["machine"] == machine:
        return {}
    if draft.provider not in _PLACES:
        # An existing host can be the head and a node at the same time.
        head = draft.section["head"]
        same = head.get("host") in draft.group.get("hosts", ())
        values: Values = {(*group, "machine"): machine}
        return {**values, ("head", "machine"): machine} if same else values
    # On Azure, InfiniBand requires `same_fabric`. On Google Cloud, capacity for compact placement is scarce.
    fabric = draft.provider == "azure" and machine in sizes() and sizes()[machine].largest_fabric is not None
    placement = "same_fabric" if fabric else "none"
    place, places_of = _PLACES[draft.provider]
    values = {group: {"machine": machine, "count": draft.group["count"], "placement": placement}}
    offering = places_of([machine])
    keeps = "region" in draft.answers or draft.section["platform"][place] in offering
    return values if keeps else {**values, ("platform", place): offering[0]}


def _usd(answer: str) -> float:
    try:
        usd = float(answer)
    except ValueError:
        raise RuleError("must be a number of US dollars", "write a number such as 80") from None
    return int(usd) if usd.is_integer() else usd


@dataclass(frozen=True, kw_only=True)
class NewHost:
    """An existing host as described by the user."""

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
    """Return the changes that replace the hosts of `section`. `keys` maps targets to host keys.

    The first host becomes the head, and also a node if the previous head is a node. If SSH connections to the previous
    nodes go through the head, connections to the other new hosts go through the first one.
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
    """Return whether SSH connections to the nodes go through the head."""
    return any("proxy_jump" in host for host in section["platform"]["hosts"])


def network_of(addresses: Sequence[str]) -> IPv4Network:
    """Return the smallest network (/24 to /12) that contains all addresses, or the first address's /12 if none does."""
    networks = (IPv4Network(f"{addresses[0]}/{prefix}", strict=False) for prefix in range(24, 12, -1))
    found = (each for each in networks if all(IPv4Address(address) in each for address in addresses))
    return next(found, IPv4Network(f"{addresses[0]}/12", strict=False))


def collect(options: Mapping[str, str], draft: StackDraft, *, prompt: bool) -> StackDraft:
    """Answer all questions from `options`, and prompt for missing answers if `prompt` is true. Raises InitError."""
    problems = list[Problem]()
    # The other questions depend on the platform, and the choices at a prompt depend on the given options.
    for question in sorted(QUESTIONS, key=lambda each: each.key not in {"name", "provider", *options}):
        if question.key in options:
            draft, found = _given(question, options[question.key], draft)
            problems += found
        elif question.key in draft.answers or (draft.provider and draft.provider not in question.platforms):
            continue
        elif not prompt and (question.optional or question.instead in options):
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


def _given(question: Question, text: str, draft: StackDraft) -> tuple[StackDraft, list[Problem]]:
    """Return the draft with the option's value and no problems, or the unchanged draft and the value's problems."""
    if question.key == "provider" and draft.provider not in {"", text}:
        rule, fix = f"the stack of --from is for {draft.provider}", "remove it, or start without --from"
    elif draft.provider and draft.provider not in question.platforms:
        rule, fix = f"is not used with {draft.provider}", "remove it"
    else:
        return _checked(question, text, draft)
    return draft, [Problem(path=question.option, rule=rule, fix=fix)]


def _checked(question: Question, text: str, draft: StackDraft) -> tuple[StackDraft, list[Problem]]:
    """Return the draft with the answer and no problems, or the unchanged draft and the answer's problems."""
    try:
        new = draft.with_answer(question.key, text)
    except RuleError as error:
        return draft, [Problem(path=question.option, rule=error.rule, fix=error.fix)]
    # Until the platform is known, the name is checked in a local stack, which requires no other values.
    problems = problems_of(new if new.section else new.with_answer("provider", "local"), question.option)
    return (draft, problems) if problems else (new, [])


def problems_of(draft: StackDraft, option: str = "") -> list[Problem]:
    """Return the draft's problems. Each problem names the option that sets the value, or `option` if there is none."""
    try:
        draft.plan()
    except StackFileError as error:
        return [replace(each, path=_option(each.path, option)) for each in error.problems]
    return []


def _option(path: str, option: str) -> str:
    return next((name for pattern, name in _OPTIONS.items() if re.fullmatch(pattern, path)), option)


def _choices(question: Question, draft: StackDraft) -> Sequence[str]:
    """Return the valid answers, or an empty sequence if they cannot be listed."""
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


_LISTED = 16
"""Maximum number of choices in a message."""


def _missing(question: Question, draft: StackDraft) -> Problem:
    choices = _choices(question, draft)
    if question.key == "provider":
        # The other required options depend on the platform, so the fix lists them for each platform.
        required = {
            name: [each.option for each in QUESTIONS[2:] if name in each.platforms and not each.optional]
            for name in choices
        }
        choices = [f"{name} (with {', '.join(options)})" for name, options in required.items()]
    others = f" or one of {len(choices) - _LISTED} others" if len(choices) > _LISTED else ""
    fix = f"use one of {', '.join(choices[:_LISTED])}{others}" if choices else f"add it: {question.text}"
    more = "; `yard init --help` lists all options" if question.key == "provider" else ""
    return Problem(path=question.option, rule="is missing", fix=fix + more)


def _ask(question: Question, draft: StackDraft) -> StackDraft:
    """Prompt until the answer is valid. The number of a choice is also accepted."""
    choices = _choices(question, draft)
    for number, choice in enumerate(choices, start=1):
        say(f"{number:>4}  {_label(question, draft, choice)}")
    if question.key == "budget":
        plan = draft.plan()
        more = "".join(f" plus the unknown price of {name}" for name in unpriced(plan))
        say(f"  known list prices with {len(plan.workers)} nodes: ${known_usd(plan):.2f}/h{more}")

    def checked(text: str) -> StackDraft:
        by_number = text.isdecimal() and 0 < int(text) <= len(choices)
        new, problems = _checked(question, choices[int(text) - 1] if by_number else text, draft)
        if problems:
            raise typer.BadParameter("\n".join(f"{each.rule}. Fix: {each.fix}" for each in problems))
        return new

    text = question.text + (" (number or name)" if choices else "")
    # The draft has a place that offers the machine type.
    place = _PLACES[draft.provider][0] if question.key == "region" else None
    default = draft.section["platform"][place] if place else question.default
    # Without a default, the prompt would be repeated without a message after an empty answer.
    default = "" if default is None else default
    answered: StackDraft = typer.prompt(text, default=default, value_proc=checked, show_default=bool(default))
    return answered


def _label(question: Question, draft: StackDraft, choice: str) -> str:
    if question.key != "machine":
        return choice
    machine = machines(draft.provider)[choice]
    gpus = f"{machine.gpus} x {machine.gpu_type}" if machine.gpus else "no GPUs"
    price = "price unknown" if machine.usd_per_hour is None else f"list price ${machine.usd_per_hour:.2f}/h"
    return ", ".join([f"{choice}: {gpus}", machine.fabric, *([price] if draft.provider in _PLACES else [])])
