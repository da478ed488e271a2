"""Renders a preview as a pull request comment with a collapsible block for each stack."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from yard.preview import content
from yard.preview.report import Preview, Report

LONGEST = 65_000
"""GitHub rejects comments with more than 65,536 characters."""
MARKER = "<!-- trainyard-preview -->"
"""First line of the comment. The workflow searches for this line to replace an earlier comment."""

_LABELS = {"error": "Error", "warning": "Warning", "info": "Note"}
_LONGEST_DIFF = 12_000
_CUT = "\n... truncated; `yard preview --against BASE` shows the whole diff\n"


def render(preview: Preview, longest: int = LONGEST) -> str:
    """Return the comment with at most `longest` characters.

    If the comment is too long, some diffs or whole blocks are omitted, beginning with stacks without problems.
    """
    head = f"{MARKER}\n### {_title(preview)}\n\n{_text(content.mode(preview))}\n\n{_summary(preview)}"
    blocks = [_block(report, _plan_part(report) + _diff_part(report)) for report in preview.reports]
    full = head + "".join(blocks)
    if len(full) <= longest:
        return full
    note = "\nThe comment would be too long: some diffs or whole blocks are omitted.\n"
    room = longest - len(head) - len(note)
    without_diffs = [_block(report, _plan_part(report)) for report in preview.reports]
    order = sorted(range(len(blocks)), key=lambda at: preview.reports[at].fine)
    kept: dict[int, str] = {}
    for at in order:
        if len(without_diffs[at]) <= room:
            kept[at] = without_diffs[at]
            room -= len(kept[at])
    for at in [at for at in order if at in kept]:
        if len(blocks[at]) - len(kept[at]) <= room:
            room -= len(blocks[at]) - len(kept[at])
            kept[at] = blocks[at]
    return (head + "".join(kept[at] for at in sorted(kept)) + note)[:longest]


def _title(preview: Preview) -> str:
    count = len(preview.reports)
    return f"Preview of {count} stacks" if count > 1 else f"Preview of {_text(preview.reports[0].stack)}"


def _summary(preview: Preview) -> str:
    rows = [(report.stack, content.state(report), content.headline(report)) for report in preview.reports]
    return f"{_table(('stack', 'result', 'summary'), rows)}\nPrices do not include: {content.NOT_INCLUDED}.\n\n"


def _block(report: Report, body: str) -> str:
    opened = "" if report.fine else " open"
    title = f"<b>{escape(report.stack)}</b>: {content.state(report)}, {escape(content.headline(report))}"
    return f"<details{opened}><summary>{title}</summary>\n\n{body}\n</details>\n\n"


def _plan_part(report: Report) -> str:
    plan = report.description["plan"]
    parts = []
    if resources := report.resources:
        messages = [("error", text) for text in resources.errors] + [("warning", text) for text in resources.warnings]
        parts.append("".join(f"- **{_LABELS[level]}**: {_message(text)}\n" for level, text in messages))
    if found := content.checks(report):
        parts.append("".join(f"- **{_LABELS[each['level']]}**: {_text(content.check_line(each))}\n" for each in found))
    if plan:
        parts.append(_table(content.HOST_COLUMNS, content.host_rows(plan)))
        lines = [*content.costs(report.description), content.user_data_sizes(report)]
        parts.append("".join(f"- {_text(line)}\n" for line in lines))
    columns, rows = content.quota_table(report)
    if rows:
        parts.append(_table(columns, rows))
    parts.append("".join(f"- {_text(note)}\n" for note in content.account_notes(report)))
    if report.resources and report.resources.steps:
        types = ((kind, str(count)) for kind, count in report.resources.by_type.items())
        parts.append(f"Resources: {content.operations(report)}\n\n{_table(('type', 'count'), types)}")
        changed = content.change_rows(report.resources)
        parts.append(_table(content.CHANGE_COLUMNS, changed) if changed else "")
    return "\n".join(filter(None, parts))


def _message(text: str) -> str:
    """Return an engine message as Markdown. A message with several lines becomes a fenced block."""
    if "\n" not in text:
        return _text(text)
    fence = _fence(text)
    return f"\n\n{fence}\n{text[:_LONGEST_DIFF]}\n{fence}\n"


def _diff_part(report: Report) -> str:
    parts = []
    for diff in report.difference["files"] if report.difference else ():
        text = diff["diff"]
        if len(text) > _LONGEST_DIFF:
            text = text[:_LONGEST_DIFF].rpartition("\n")[0] + _CUT
        fence = _fence(text)
        parts.append(f"\n{_text(content.diff_title(diff))}\n\n{fence}diff\n{text}{fence}\n")
    return "".join(parts)


def _fence(text: str) -> str:
    """Return a code fence that does not occur in the text."""
    fence = "```"
    while fence in text:
        fence += "`"
    return fence


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *([_cell(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return _text(text).replace("|", "\\|").replace("\n", " ")


def _text(text: str) -> str:
    """Escape Markdown and HTML, so that a stack file cannot add links or mentions to the comment."""
    escaped = escape(text, quote=False)
    return "".join(f"\\{c}" if c in "\\`*_[]#~@" else c for c in escaped)
