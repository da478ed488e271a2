"""The questions of `yard init`, in order. A question can be answered with an option or at a prompt."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from components.catalog import Machine, machines
from components.spec.explain import nearest
from trainyard.errors import RuleError
from yard.init import hosts
from yard.init.check import prices_line, problems_of
from yard.init.created import NO_LIMIT, number
from yard.init.known import Known
from yard.init.platforms import STARTERS
from yard.stack.workspace import stack_names

_MOST_DIGITS = 9


def _no_choices(known: Known) -> Sequence[str]:
    return ()


def _no_hint(known: Known) -> str:
    return ""


def _no_default(known: Known) -> str:
    return ""


def _same(text: str, known: Known) -> str:
    return text


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question about a value of a new stack. `option` is its command-line option, and `text` describes the value."""

    key: str
    option: str
    text: str
    choices: Callable[[Known], Sequence[str]] = _no_choices
    """Returns the valid values, or nothing if there are too many."""
    parse: Callable[[str, Known], str] = _same
    """Returns the value in the form that the stack file uses. Raises RuleError."""
    label: Callable[[str, Known], str] = _same
    """Returns a line that describes a choice."""
    hint: Callable[[Known], str] = _no_hint
    """Returns a line that is printed before the prompt, or an empty text."""
    default: Callable[[Known], str] = _no_default
    """Returns the value for an empty answer at the prompt, or an empty text if an answer is required."""
    optional: bool = False


def parse_name(text: str, known: Known) -> str:
    """Return the name. Raises RuleError if the stack has a file that may not be replaced."""
    if text in stack_names() and not known.force:
        raise RuleError(f"stacks/Pulumi.{text}.yaml exists", "choose a different name, or replace it with --force")
    return text


def providers(known: Known) -> Sequence[str]:
    """Return the providers."""
    return tuple(STARTERS)


def parse_provider(text: str, known: Known) -> str:
    """Return the provider. Raises RuleError for an unknown provider."""
    return _one_of(text, tuple(STARTERS))


def places(known: Known) -> Sequence[str]:
    """Return the regions or zones that offer the machine type, or any machine type with GPUs if it is unknown."""
    return STARTERS[known.get("provider")].places(known.get("machine"))


def parse_image(text: str, known: Known) -> str:
    """Return the operating system. Raises RuleError if it is unknown."""
    return _one_of(text, hosts.images())


def _one_of(text: str, choices: Sequence[str]) -> str:
    if text in choices:
        return text
    similar = nearest(text, choices)
    raise RuleError("must be a known value", f"write {similar}" if similar else f"use one of {', '.join(choices)}")


def parse_place(text: str, known: Known) -> str:
    """Return the region or zone. Raises RuleError if the platform has no such place.

    On a platform with zones, a region is replaced by its first zone that offers the machine type.
    """
    offered = places(known)
    found = next((place for place in offered if place.rpartition("-")[0] == text), text)
    # All places are those of a machine type that is not in the catalog.
    if found in STARTERS[known.get("provider")].places("unlisted"):
        return found
    similar = nearest(text, offered)
    fix = f"write {similar}" if similar else f"use one of {', '.join(offered)}"
    raise RuleError("must be a region or zone of the platform", fix)


def usable_machines(known: Known) -> Sequence[str]:
    """Return the machine types that the region offers and that pass all checks. Types with GPUs come first."""
    found = machines(known.get("provider")).values()
    start = known.without("count")
    usable = [each for each in found if not problems_of(start.with_answer("machine", each.name), "")]
    return [machine.name for machine in sorted(usable, key=lambda each: not each.gpus)]


def parse_machine(text: str, known: Known) -> str:
    """Return the machine type. Raises RuleError for an unknown type, and names the types with the GPU first."""
    types = machines(known.get("provider"))
    if text in types or nearest(text, list(types)):
        # The check of the stack file reports an unknown type that is similar to a known type.
        return text
    word = text.lower()
    near = [name for name, machine in types.items() if word and (word in name.lower() or word == machine.gpu_type)]
    others = [name for name, machine in types.items() if name not in near and machine.gpus]
    fix = f"write {' or '.join(near)}" if near else f"use one of {', '.join(others)}"
    raise RuleError(f"must be a machine type of the platform {known.get('provider')}", fix)


def machine_line(name: str, known: Known) -> str:
    """Return the name of a machine type with its GPUs, fabric and list price."""
    machine = machines(known.get("provider"))[name]
    parts = [f"{machine.gpus} x {machine.gpu_type}" if machine.gpus else "no GPUs", machine.fabric, _price(machine)]
    return f"{name}: {', '.join(filter(None, parts))}"


def _price(machine: Machine) -> str:
    if not STARTERS[machine.provider].place:
        return ""
    return "price unknown" if machine.usd_per_hour is None else f"list price ${machine.usd_per_hour:.2f}/h"


def parse_budget(text: str, known: Known) -> str:
    """Return the price limit in dollars per hour, or NO_LIMIT. Raises RuleError."""
    fix = f"write a number such as 80, or {NO_LIMIT}"
    if text == NO_LIMIT:
        return text
    try:
        value = float(text.removeprefix("$"))
    except ValueError:
        raise RuleError("must be a number of US dollars per hour", fix) from None
    if not math.isfinite(value) or value <= 0:
        raise RuleError("must be a number of US dollars per hour greater than 0", fix)
    return str(number(f"{value:.2f}"))


def parse_count(text: str, known: Known) -> str:
    """Return the number of machines. Raises RuleError."""
    if not text.isdecimal() or len(text) > _MOST_DIGITS:
        raise RuleError("must be a whole number", "write for example 2")
    return str(int(text))


def parse_words(text: str, known: Known) -> str:
    """Return the words, separated by single spaces. Words can also be separated by commas."""
    return " ".join(text.replace(",", " ").split())


def parse_hosts(text: str, known: Known) -> str:
    """Return the hosts in the format of hosts.FORMAT. Raises RuleError."""
    words = parse_words(text, known)
    for word in words.split():
        hosts.parse_host(word)
    return words


QUESTIONS: tuple[Question, ...] = (
    Question(key="name", option="NAME", text="Name of the stack and the cluster", parse=parse_name),
    Question(key="provider", option="--provider", text="Platform", choices=providers, parse=parse_provider),
    Question(key="project", option="--project", text="Id of the Google Cloud project"),
    Question(
        key="image",
        option="--image",
        text="Operating system of the hosts",
        choices=lambda known: hosts.images(),
        parse=parse_image,
    ),
    Question(
        key="machine",
        option="--machine",
        text="Machine type of the nodes",
        choices=usable_machines,
        parse=parse_machine,
        label=machine_line,
    ),
    Question(
        key="region",
        option="--region",
        text="Region or zone",
        choices=places,
        parse=parse_place,
        default=lambda known: places(known)[0],
    ),
    Question(key="host", option="--host", text=f"Hosts as {hosts.FORMAT}, the head first", parse=parse_hosts),
    Question(key="count", option="--count", text="Number of nodes", parse=parse_count, default=lambda known: "2"),
    Question(
        key="budget",
        option="--budget",
        text=f"Maximum list price in US dollars per hour, or {NO_LIMIT}",
        parse=parse_budget,
        hint=prices_line,
    ),
    Question(
        key="ssh_from",
        option="--ssh-from",
        text="Networks that may connect over SSH, such as your public address as a /32. Empty: the cloud's SSH gateway",
        parse=parse_words,
        optional=True,
    ),
)
