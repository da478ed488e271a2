"""The documentation site contains all pages, and the README's pictures are current."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tools.pictures import THEMES, cluster
from tools.site import OUTSIDE, links


def test_every_page_is_in_the_navigation() -> None:
    named = re.findall(r"(?m)^ +- ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text())
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    assert sorted(named) == sorted([*pages, *OUTSIDE.values()])


@pytest.mark.parametrize(
    ("source", "path", "link", "shown"),
    [
        ("docs/cost.md", "cost.md", "[a `b`](jobs.md#c)", "[a `b`](jobs.md#c)"),
        ("docs/cost.md", "cost.md", "[a](../SECURITY.md)", "[a](security.md)"),
        (
            "docs/platforms/gcp.md",
            "platforms/gcp.md",
            "[a](../../cloud-init/README.md#x)",
            "[a](../dev/node-set-up.md#x)",
        ),
        ("README.md", "index.md", "[a](docs/cost.md), [b](stacks)", "[a](cost.md), b"),
        ("SECURITY.md", "security.md", "[a](https://example.org/x)", "[a](https://example.org/x)"),
        ("cloud-init/README.md", "dev/node-set-up.md", "[a](../docs/dev/ci.md)", "[a](ci.md)"),
    ],
)
def test_links_lead_to_pages_of_the_site(source: str, path: str, link: str, shown: str) -> None:
    assert links(link, path, source) == shown


@pytest.mark.parametrize("theme", THEMES)
def test_pictures_are_current(theme: str) -> None:
    file = ROOT / "docs" / "images" / f"cluster-{theme}.svg"
    assert file.read_text() == cluster(THEMES[theme]), "run `python -m tools.pictures`"


MKDOCS = ROOT / ".trainyard" / "site" / "venv" / "bin" / "mkdocs"


needs_mkdocs = pytest.mark.skipif(
    not MKDOCS.exists(), reason="MkDocs is not installed: run `make site`, as .ci/run does"
)


@pytest.mark.engine
@needs_mkdocs
def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    for name in ("docs", "tools", "mkdocs.yml", *(name for name in OUTSIDE if not name.startswith("."))):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (tmp_path / name).parent.mkdir(exist_ok=True)
        copy(ROOT / name, tmp_path / name)
    (tmp_path / ".trainyard" / "site").mkdir(parents=True)
    (tmp_path / ".trainyard" / "site" / "venv").symlink_to(MKDOCS.parents[1])
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    with (tmp_path / "docs" / "cost.md").open("a") as page:
        page.write("\n[nowhere](health.md#nowhere)\n")
    done = subprocess.run(
        [tmp_path / "tools" / "setup" / "site.sh"], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode != 0
    assert "'health.md#nowhere'" in done.stderr


@pytest.mark.engine
@needs_mkdocs
def test_the_site_builds_without_warnings() -> None:
    subprocess.run([ROOT / "tools" / "setup" / "site.sh"], check=True, timeout=300)
    assert (ROOT / ".trainyard" / "site" / "html" / "index.html").exists()
