"""Plot of the results as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape

from bandwidth.groups import Record

_ROW, _LEFT, _WIDTH = 18, 260, 420


def draw(records: Mapping[str, Record]) -> str:
    """Return an SVG with one bar per measurement, and a line at each floor. Bandwidths are in GB/s."""
    rows = list(_rows(records))
    largest = max((max(value, floor or 0) for _, value, floor in rows), default=0) or 1
    body = []
    for index, (label, value, floor) in enumerate(rows):
        top, scale = 10 + index * _ROW, _WIDTH / largest
        colour = "#c33" if floor is not None and value < floor else "#386"
        body.append(f'<text x="{_LEFT - 6}" y="{top + 12}" text-anchor="end">{escape(label)}</text>')
        body.append(f'<rect x="{_LEFT}" y="{top}" width="{value * scale:.1f}" height="14" fill="{colour}"/>')
        body.append(f'<text x="{_LEFT + value * scale + 4:.1f}" y="{top + 12}">{value:.4g}</text>')
        if floor is not None:
            x = f"{_LEFT + floor * scale:.1f}"
            body.append(f'<line x1="{x}" y1="{top - 2}" x2="{x}" y2="{top + 16}" stroke="#000"/>')
    height = 20 + len(rows) * _ROW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 80}" height="{height}" '
        f'font-family="sans-serif" font-size="12">\n' + "\n".join(body) + "\n</svg>\n"
    )


def _rows(records: Mapping[str, Record]) -> Iterator[tuple[str, float, float | None]]:
    """Yield label, bandwidth and floor of each measurement. A failed measurement has the bandwidth 0."""
    for group, record in records.items():
        for name, result in sorted(record.alone.items()):
            yield f"{group}: {name}", result.busbw or 0, record.floors[0]
        for (first, second), result in sorted(record.pairs.items()):
            yield f"{group}: {first} and {second}", result.busbw or 0, record.floors[1]
