"""`python -m tools.pictures` draws the README's pictures: docs/images/cluster-{light,dark}.svg.

With `--session`, it also runs commands on the local cluster of `make demo`, and draws their output in
docs/images/session.svg. Commit the files: GitHub shows them, and a test draws the first two again.
"""

from __future__ import annotations

import argparse
import io
import os
import shlex
import subprocess
from dataclasses import dataclass
from html import escape

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

from trainyard.project import ROOT

FOLDER = ROOT / "docs" / "images"
SESSION = (
    "yard nodes",
    "yard submit allreduce --follow",
    "yard ps",
)
_COLUMNS = 120
_MOST_LINES = 30
_FRAME = """\
<svg viewBox="0 0 {terminal_width} {terminal_height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, monospace; font-size: {char_height}px;
 line-height: {line_height}px; }}
{styles}
</style>
<defs>{lines}</defs>
<rect width="{terminal_width}" height="{terminal_height}" rx="8" fill="#191919"/>
{backgrounds}
<g class="{unique_id}-matrix" transform="translate(10, 8)">{matrix}</g>
</svg>
"""


@dataclass(frozen=True)
class Colors:
    """The colors of a picture of the cluster."""

    text: str
    dim: str
    line: str
    box: str
    inner: str
    accent: str


THEMES = {
    "light": Colors("#1f2328", "#59636e", "#8c959f", "#f6f8fa", "#ffffff", "#0969da"),
    "dark": Colors("#f0f6fc", "#9198a1", "#6e7681", "#151b23", "#0d1117", "#4493f8"),
}


def cluster(colors: Colors) -> str:
    """Return a picture of the user's computer, the head and the nodes, as SVG."""
    parts: list[str] = []

    def box(x: int, y: int, width: int, height: int, fill: str) -> None:
        parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{fill}" stroke="{colors.line}"/>'
        )

    def text(x: int, y: int, value: str, style: str = "") -> None:
        fill = colors.dim if "dim" in style else colors.text
        weight = ' font-weight="600"' if "bold" in style else ""
        family = ' font-family="ui-monospace,Menlo,Consolas,monospace"' if "code" in style else ""
        anchor = ' text-anchor="middle"' if "middle" in style else ""
        parts.append(f'<text x="{x}" y="{y}" fill="{fill}"{weight}{family}{anchor}>{escape(value)}</text>')

    def arrow(x: int, y: int, to_x: int, to_y: int, both: bool = False) -> None:
        start = ' marker-start="url(#tip)"' if both else ""
        line = f'<path d="M{x} {y} L{to_x} {to_y}" stroke="{colors.accent}" stroke-width="2"'
        parts.append(f'{line} marker-end="url(#tip)"{start}/>')

    box(8, 8, 290, 264, colors.box)
    text(24, 34, "your computer", "bold")
    box(24, 50, 258, 62, colors.inner)
    text(38, 75, "stacks/Pulumi.big.yaml", "code")
    text(38, 97, "machines, budget, people", "dim")
    box(24, 122, 258, 62, colors.inner)
    text(38, 147, "yard preview, pulumi up", "code")
    text(38, 169, "prices and mistakes first", "dim")
    box(24, 194, 258, 62, colors.inner)
    text(38, 219, "yard submit train.py", "code")
    text(38, 241, "yard top, logs, report, cost", "dim")
    box(392, 8, 480, 264, colors.box)
    text(408, 34, "the cluster: Azure, Google Cloud, your hosts or local VMs", "bold")
    box(408, 50, 448, 62, colors.inner)
    text(424, 75, "head", "bold")
    text(424, 97, "Slurm, files, health checks, repair, metrics, power", "dim")
    for index in range(3):
        x = 408 + index * 152
        box(x, 150, 144, 106, colors.inner)
        text(x + 14, 174, f"node {index}", "bold")
        for gpu in range(8):
            parts.append(
                f'<rect x="{x + 14 + gpu % 4 * 30}" y="{184 + gpu // 4 * 20}" width="26" height="15" rx="3" '
                f'fill="{colors.accent}"/>'
            )
        text(x + 14, 244, "one rank per GPU", "dim")
        arrow(x + 72, 114, x + 72, 146, both=True)
    arrow(302, 90, 386, 90)
    text(345, 80, "SSH", "dim middle")
    text(632, 290, "InfiniBand, GPUDirect or Ethernet between the nodes", "dim middle")
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 880 298" font-family="system-ui,sans-serif" '
        'font-size="14">'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="6" markerHeight="6" '
        f'orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" fill="{colors.accent}"/></marker></defs>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def session() -> str:
    """Run the commands of SESSION, and return what a terminal would show, as SVG. Long outputs are shortened."""
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True)
    environment = {**os.environ, "COLUMNS": str(_COLUMNS), "TERM": "xterm-256color"}
    for line in SESSION:
        console.print(Text.assemble(("$ ", "bold green"), (line, "bold")))
        done = subprocess.run(
            shlex.split(line), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=environment
        )
        lines = done.stdout.splitlines()
        if len(lines) > _MOST_LINES:
            lines[_MOST_LINES // 2 : -_MOST_LINES // 2] = ["..."]
        for shown in lines:
            console.print(Text.from_ansi(shown[:_COLUMNS]))
        console.print()
    return console.export_svg(title="", theme=DIMMED_MONOKAI, code_format=_FRAME)


def main() -> None:
    """Write the pictures."""
    parser = argparse.ArgumentParser(prog="python -m tools.pictures", description="Draw the README's pictures.")
    parser.add_argument("--session", action="store_true", help="also run commands on the local cluster")
    FOLDER.mkdir(exist_ok=True)
    if parser.parse_args().session:
        (FOLDER / "session.svg").write_text(session())
    for theme, colors in THEMES.items():
        (FOLDER / f"cluster-{theme}.svg").write_text(cluster(colors))


if __name__ == "__main__":
    main()
