"""MkDocs hooks for mkdocs.yml. The links of all pages are written for GitHub, and work on the site too.

Pages outside docs/ become pages of the site. A link to another file outside docs/ becomes plain text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "dev/contributing.md",
    "cloud-init/README.md": "dev/node-set-up.md",
    "CHANGELOG.md": "dev/changelog.md",
    ".trainyard/site/checks.md": "checks.md",
}
"""Mapping from a page's path in the repository to its path on the site."""
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]+)?\)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages outside docs/."""
    from mkdocs.structure.files import File  # noqa: PLC0415  (tests import this module without MkDocs)

    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Return the page's text with links to the pages of the site."""
    path = page.file.src_uri
    return links(markdown, path, next((source for source, name in OUTSIDE.items() if name == path), f"docs/{path}"))


def links(markdown: str, path: str, source: str) -> str:
    """Return the text of a page with other links. `path` is its path on the site, and `source` in the repository."""

    def replace(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        name = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if name in OUTSIDE:
            on_site = OUTSIDE[name]
        elif name.startswith("docs/") and posixpath.splitext(name)[1]:
            on_site = name.removeprefix("docs/")
        else:
            return text
        return f"[{text}]({posixpath.relpath(on_site, posixpath.dirname(path) or '.')}{anchor})"

    return _LINK.sub(replace, markdown).replace('="docs/images/', '="images/')
