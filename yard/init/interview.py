"""Collects the values of a new stack from options, a base stack, and prompts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from components.plan.check import Computer
from trainyard.errors import FileError, Problem, RuleError
from yard.init.check import problems_of
from yard.init.known import Known
from yard.init.platforms import STARTERS
from yard.init.questions import QUESTIONS, Question

_PROVIDER = "provider"
_WIDTH = 100


class InitError(FileError):
    """Missing or invalid options of `yard init`."""

    spared = "written"


@dataclass(frozen=True, kw_only=True)
class Terminal:
    """Prompts. `ask` prints a text and returns a line without spaces around it. `say` prints a line.

    `available` returns the machine types that the account can use, or None if the types are unknown.
    """

    ask: Callable[[str], str]
    say: Callable[[str], None]
    available: Callable[[Known], Collection[str] | None] = lambda known: None


def collect(
    options: Mapping[str, str], defaults: Known, terminal: Terminal | None, computer: Computer | None = None
) -> Known:
    """Return all values. `options` contains the given options by key, and `defaults` the values for other keys.

    Prompts for missing values on the terminal. Raises InitError with all problems if there is no terminal or an option
    is wrong. `computer`: see `Planned`.
    """
    known, problems = defaults, []
    for question in QUESTIONS:
        if question.key in options:
            known, found = _given(question, options[question.key], known, computer)
            problems += found
        if question.key == _PROVIDER and _PROVIDER not in known.answers:
            # The other options depend on the platform.
            break
    if problems or terminal is None:
        wrong = {problem.path for problem in problems}
        problems += [_missing(question, known) for question in _open(known) if question.option not in wrong]
    if problems:
        raise InitError("yard init", problems)
    while terminal is not None and (left := list(_open(known, optional=True))):
        # The first answer can determine the other questions.
        known = _ask(left[0], known, terminal, computer)
    return known


def _given(question: Question, text: str, known: Known, computer: Computer | None) -> tuple[Known, list[Problem]]:
    """Add the value of an option to `known`. If it is invalid, return `known` unchanged, and the problems."""
    provider = known.get(_PROVIDER)
    if question.key == _PROVIDER and provider and text != provider:
        fix = "remove it, or start without --from"
        return known, [Problem(path=question.option, rule=f"the stack of --from is for {provider}", fix=fix)]
    if question.key not in _keys(provider):
        return known, [Problem(path=question.option, rule=f"is not used with {provider}", fix="remove it")]
    return _answered(question, text, known, computer)


def _answered(question: Question, text: str, known: Known, computer: Computer | None) -> tuple[Known, list[Problem]]:
    """Add the answer to `known`. If it is invalid, return `known` unchanged, and the problems."""
    try:
        new = known.with_answer(question.key, question.parse(text, known))
    except RuleError as error:
        return known, [Problem(path=question.option, rule=error.rule, fix=error.fix)]
    # If the platform is not known yet, the name is checked with `local`, which requires no other values.
    checked = new if new.get(_PROVIDER) else new.with_answer(_PROVIDER, "local")
    problems = problems_of(checked, question.option, computer)
    return (known, problems) if problems else (new, [])


def _open(known: Known, *, optional: bool = False) -> Iterator[Question]:
    """Yield the unanswered questions. If the platform is unknown, only the first questions are included."""
    keys = _keys(known.get(_PROVIDER)) - known.answers.keys()
    return (question for question in QUESTIONS if question.key in keys and (optional or not question.optional))


def _keys(provider: str) -> set[str]:
    """Return the keys of the questions for a platform, or of the first questions if the platform is unknown."""
    return {"name", _PROVIDER, *(STARTERS[provider].keys if provider else ())}


def _missing(question: Question, known: Known) -> Problem:
    choices = question.choices(known)
    if question.key == _PROVIDER:
        # The other required options depend on the platform, so each platform in the fix is followed by its options.
        choices = [f"{choice} (with {_options(choice)})" for choice in choices]
    fix = f"use one of {', '.join(choices)}" if choices else f"add it: {question.text}"
    return Problem(path=question.option, rule="is missing", fix=fix)


def _menu(labels: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a numbered list. Short labels are arranged in several columns."""
    items = [f"{number:>4}  {label}" for number, label in enumerate(labels, start=1)]
    width = max(map(len, items), default=1)
    columns = max(1, _WIDTH // (width + 1))
    for start in range(0, len(items), columns):
        yield " ".join(item.ljust(width) for item in items[start : start + columns]).rstrip()


def _options(provider: str) -> str:
    """Return the required options of a platform."""
    keys = STARTERS[provider].keys
    return ", ".join(each.option for each in QUESTIONS if each.key in keys and not each.optional)


def _ask(question: Question, known: Known, terminal: Terminal, computer: Computer | None) -> Known:
    """Prompt until the answer is valid."""
    choices = question.choices(known)
    # Without a region, the account's machine types are unknown. The summary then states whether the type is available.
    if question.key == "machine" and known.get("region") and (usable := terminal.available(known)) is not None:
        hidden = [choice for choice in choices if choice not in usable]
        choices = [choice for choice in choices if choice in usable]
        if hidden:
            terminal.say(f"  not available to your account: {', '.join(hidden)}")
    for line in _menu([question.label(choice, known) for choice in choices]):
        terminal.say(line)
    if hint := question.hint(known):
        terminal.say(f"  {hint}")
    default = question.default(known)
    prompt = f"{question.text}{' (number or name)' if choices else ''}{f' [{default}]' if default else ''}: "
    while True:
        text = terminal.ask(prompt) or default
        if text.isdecimal() and 0 < int(text) <= len(choices):
            text = choices[int(text) - 1]
        if not text and not question.optional:
            terminal.say("  an answer is required")
            continue
        new, problems = _answered(question, text, known, computer)
        for problem in problems:
            terminal.say(f"  {problem.line('yard init')}")
        if not problems:
            return new
