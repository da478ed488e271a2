"""Stack files, and the copies in .trainyard/stacks that Pulumi uses.

Pulumi writes a random salt into the stack file that it uses. Because Pulumi uses a copy, the committed file remains
unchanged.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from trainyard import checkout
from trainyard.errors import StackError

SECRETS_KEYS = ("secretsprovider", "encryptedkey", "encryptionsalt")
"""Keys that Pulumi adds to a stack file."""


def stack_names() -> list[str]:
    """Return the names of all committed stack files, sorted."""
    files = (checkout.ROOT / "stacks").glob("Pulumi.*.yaml")
    return sorted(file.name.removeprefix("Pulumi.").removesuffix(".yaml") for file in files)


def short_name(stack: str) -> str:
    """Return STACK for ORGANIZATION/PROJECT/STACK. The name of the stack file contains only STACK."""
    return stack.rpartition("/")[2]


def committed_text(stack: str) -> str:
    """Return the text of the committed stack file. Raises StackError."""
    name = f"stacks/Pulumi.{stack}.yaml"
    try:
        return (checkout.ROOT / name).read_text()
    except FileNotFoundError:
        fix = f"use one of {', '.join(stack_names())}"
        raise StackError(f"no stack '{stack}': {name} does not exist. Fix: {fix}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise StackError(f"{name} cannot be read: {error}. Fix: write it as UTF-8 text") from error


def platform_section(stack: str) -> dict[str, Any]:
    """Return the `platform` section of the committed stack file, or an empty dictionary if the file is invalid."""
    try:
        section = yaml.safe_load(committed_text(stack))["config"]["trainyard:cluster"]["platform"]
    except (yaml.YAMLError, RecursionError, KeyError, TypeError):
        return {}
    return section if isinstance(section, dict) else {}


def copy_of(stack: str, home: Path | None = None) -> Path:
    """Return the path of the copy. `home` is the folder for the files of another backend."""
    return (home or checkout.state()) / "stacks" / f"Pulumi.{stack}.yaml"


def refresh_copy(stack: str, home: Path | None = None, source: str | None = None, *, with_secrets: bool = True) -> Path:
    """Write the committed file to the copy, and keep the salt of the previous copy. Returns its path.

    `source` is the name of the committed file if it differs from the name of the stack. `with_secrets`: False if
    the backend has a different passphrase and so cannot decrypt the secrets of the committed file.
    """
    text, copy = committed_text(source or stack), copy_of(stack, home)
    text = text if with_secrets else _without_secrets(text)
    added = added_keys(copy.read_text()) if copy.exists() else {}
    missing = {key: value for key, value in added.items() if key not in added_keys(text)}
    copy.parent.mkdir(parents=True, exist_ok=True)
    new = copy.with_suffix(".new")
    new.write_text(text.rstrip("\n") + "\n" + (yaml.safe_dump(missing) if missing else ""))
    new.replace(copy)
    return copy


def _without_secrets(text: str) -> str:
    """Return a stack file without the keys that Pulumi added and without encrypted values, as Pulumi writes them."""
    text = re.sub(rf"(?m)^({'|'.join(SECRETS_KEYS)}):.*\n?", "", text)
    return re.sub(r"(?m)^ +\S+:\n +secure: .*\n?", "", text)


def added_keys(text: str) -> dict[str, str]:
    """Return the keys that Pulumi added, or an empty dictionary for invalid YAML, which Pulumi reports."""
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError):
        return {}
    return {key: str(document[key]) for key in SECRETS_KEYS if key in document} if isinstance(document, dict) else {}
