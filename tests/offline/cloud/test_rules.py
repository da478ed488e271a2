"""The rules for the simulated clouds contain only resource types that a platform creates."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
SOURCES = {"azure-native": "azure", "gcp": "gcp"}


@pytest.mark.parametrize("package", SOURCES)
def test_every_type_with_rules_is_created_by_the_platform(package: str) -> None:
    files = (ROOT / "components" / "platforms" / SOURCES[package]).rglob("*.py")
    code = "\n".join(file.read_text() for file in files)
    rules = yaml.safe_load((ROOT / "offline" / "cloud" / "rules" / f"{package}.yaml").read_text())
    unused = [token for token in rules["types"] if f"{token.rpartition(':')[2]}(" not in code]
    assert unused == []
