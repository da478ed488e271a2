"""Charts as SVG, without scripts. page.css defines their colours for light and dark pages and for paper."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import groupby

from yard.report.record import Numbers

_WIDTH, _HEIGHT = 580, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 40
_TICKS = 5
_ROW, _LABEL = 16, 140


def ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers from `low` to `high`."""
    span = max(high - low, 1e-9)
    raw = span / _TICKS
    size = 10 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """Return a number with few digits, such as "12k", "3.5" or "0.002"."""
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if suffix == 'k' else limit):.3g}{suffix}"
    return f"{value:.4g}"


def line_chart(  # noqa: PLR0913  (a title and five properties of the axes)
    title: str,
    axes: tuple[str, str],
    x: Numbers,
    series: Mapping[str, Numbers],
    *,
    zero: bool,
    cap: float | None = None,
) -> str:
    """Return a chart with a line for each series, or "" without values.

    `axes` are the labels of both axes. The y axis begins at 0 if `zero` is set. Values above `cap` are drawn at `cap`.
    """
    shown = {name: tuple(None if value is None else min(value, cap or value) for value in values)
             for name, values in series.items()}  # fmt: skip
    values = [value for row in shown.values() for value in row if value is not None]
    places = [place for place in x if place is not None]
    if not values or not places:
        return ""
    low, high = (0.0 if zero else min(values)), max(values)
    high = high if high > low else low + (abs(low) or 1.0)
    start, stop = min(places), max(places)
    stop = stop if stop > start else start + (abs(start) or 1.0)
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def at(place: float, value: float) -> tuple[float, float]:
        return _LEFT + (place - start) / (stop - start) * width, _TOP + (high - value) / (high - low) * height

    body = []
    for tick in ticks(low, high):
        _, y = at(start, tick)
        body += [_line(_LEFT, y, _WIDTH - _RIGHT, y, "grid"), _label(_LEFT - 6, y + 4, number(tick), "end")]
    for tick in ticks(start, stop):
        place, _ = at(tick, low)
        body.append(_label(place, _HEIGHT - _BOTTOM + 16, number(tick), "middle"))
    body += [
        _line(_LEFT, _TOP + height, _WIDTH - _RIGHT, _TOP + height, "axis"),
        _label(_LEFT + width / 2, _HEIGHT - 6, axes[0], "middle"),
        f'<text class="label" transform="translate(14 {_TOP + height / 2:.0f}) rotate(-90)" text-anchor="middle">'
        f"{escape(axes[1])}</text>",
    ]
    for index, row in enumerate(shown.values()):
        path = " ".join(_path(at(place, value) if place is not None and value is not None else None
                              for place, value in zip(x, row, strict=True)))  # fmt: skip
        body.append(f'<path class="series s{index}" d="{path}"/>')
    legend = "".join(
        f'<li><span class="key s{index}"></span>{escape(name)}</li>' for index, name in enumerate(series)
    ) if len(series) > 1 else ""  # fmt: skip
    note = f" Values above {number(cap)} are cut off." if cap is not None and any(
        value is not None and value > cap for row in series.values() for value in row) else ""  # fmt: skip
    caption = _caption(title, note.strip(), f"<ul>{legend}</ul>" if legend else "")
    about = (
        f"{title}: from {number(values[0])} to {number(values[-1])}, at least {number(min(values))}, at most "
        + number(max(values))
    )
    return _figure(_WIDTH, _HEIGHT, about, body, caption)


def _path(points: Iterator[tuple[float, float] | None]) -> Iterator[str]:
    """Yield the commands of a path, which has a gap at each None."""
    pen = "M"
    for point in points:
        if point is None:
            pen = "M"
            continue
        yield f"{pen}{point[0]:.1f} {point[1]:.1f}"
        pen = "L"


def heat_map(title: str, rows: Sequence[tuple[str, Numbers]], *, most: float, unit: str, span: tuple[str, str]) -> str:
    """Return a row of cells for each label, darker for higher values up to `most`, or "" without values.

    `span` contains the labels at the first and the last cell.
    """
    columns = max((len(values) for _, values in rows), default=0)
    if not columns or most <= 0:
        return ""
    width = (_WIDTH - _LABEL - _RIGHT) / columns
    body = []
    for index, (label, values) in enumerate(rows):
        top = _TOP + index * _ROW
        body.append(_label(_LABEL - 6, top + 12, label, "end"))
        levels = [None if value is None else round(20 * min(1.0, max(0.0, value / most))) for value in values]
        column = 0
        # Neighbours of the same level share a rectangle.
        for level, cells in groupby(levels):
            left, column = _LABEL + column * width, column + len(list(cells))
            if level is not None:
                body.append(f'<rect class="cell" x="{left:.1f}" y="{top}" width="{_LABEL + column * width - left:.1f}" '
                            f'height="{_ROW - 2}" fill-opacity="{0.05 + 0.0475 * level:.2f}"/>')  # fmt: skip
    bottom = _TOP + len(rows) * _ROW
    body.append(_label(_LABEL, bottom + 14, span[0], "start"))
    body.append(_label(_WIDTH - _RIGHT, bottom + 14, span[1], "end"))
    caption = _caption(title, f"The lightest cells are 0 {unit}, the darkest {number(most)} {unit}.")
    return _figure(_WIDTH, bottom + 22, f"{title}; the table has the means", body, caption)


def bars(title: str, rows: Sequence[tuple[str, float, str]], unit: str, marked: frozenset[int] = frozenset()) -> str:
    """Return a bar for each label, value and text. Bars with an index in `marked` have another colour and a mark."""
    largest = max((value for _, value, _ in rows), default=0.0)
    if not largest:
        return ""
    length, body = _WIDTH - _LABEL - 90, []
    for index, (label, value, text) in enumerate(rows):
        top, width = _TOP + index * _ROW, max(0.0, value) / largest * length
        style = "bar marked" if index in marked else "bar"
        body += [
            _label(_LABEL - 6, top + 12, label, "end"),
            f'<rect class="{style}" x="{_LABEL}" y="{top}" width="{width:.1f}" height="{_ROW - 3}"/>',
            _label(_LABEL + width + 5, top + 12, text + (" slow" if index in marked else ""), "start"),
        ]
    return _figure(_WIDTH, _TOP + len(rows) * _ROW + 8, f"{title}, in {unit}", body,
                   _caption(f"{title}, in {unit}"))  # fmt: skip


def _figure(width: int, height: int, about: str, body: Sequence[str], caption: str) -> str:
    return (
        f'<figure tabindex="0">{caption}<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(about)}">'
        f"{''.join(body)}</svg></figure>"
    )


def _caption(title: str, note: str = "", legend: str = "") -> str:
    more = f' <span class="note">{escape(note)}</span>' if note else ""
    return f"<figcaption>{escape(title)}{more}{legend}</figcaption>"


def _line(left: float, top: float, right: float, bottom: float, style: str) -> str:
    return f'<line class="{style}" x1="{left:.1f}" y1="{top:.1f}" x2="{right:.1f}" y2="{bottom:.1f}"/>'


def _label(left: float, top: float, text: str, anchor: str) -> str:
    return f'<text class="label" x="{left:.1f}" y="{top:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
