"""The stack file that Pulumi is given: the committed one plus the salt, in .trainyard/stacks.

Pulumi writes a random salt into the stack file that it uses. Working on a copy keeps the committed file as it is.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from tools.environment import ROOT, STATE, ToolError

SECRETS_KEYS = ("secretsprovider", "encryptedkey", "encryptionsalt")
"""What Pulumi itself adds to a stack file."""


def committed(stack: str) -> Path:
    """Return the stack file that people write. Raises ToolError naming those that exist when there is none."""
    file = ROOT / "stacks" / f"Pulumi.{stack}.yaml"
    if file.is_file():
        return file
    known = sorted(
        path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in file.parent.glob("Pulumi.*.yaml")
    )
    raise ToolError(f"no stack '{stack}': {file.relative_to(ROOT)} is not there. Fix: use one of {', '.join(known)}")


def copy_of(stack: str, home: Path | None = None) -> Path:
    """Return where the copy with the salt lies. `home`: the folder of another backend's copies."""
    return (home or STATE) / "stacks" / f"Pulumi.{stack}.yaml"


def refresh_copy(stack: str, home: Path | None = None) -> Path:
    """Bring the copy up to date with the committed file, keeping the salt that Pulumi put into it."""
    source, copy = committed_text(stack), copy_of(stack, home)
    kept = _secrets_of(copy.read_text()) if copy.exists() else {}
    missing = {key: value for key, value in kept.items() if key not in _secrets_of(source)}
    text = source.rstrip("\n") + "\n" + (yaml.safe_dump(missing) if missing else "")
    copy.parent.mkdir(parents=True, exist_ok=True)
    fresh = copy.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(copy)
    return copy


def committed_text(stack: str) -> str:
    """Return what the committed file says. Raises ToolError where it cannot be read."""
    file = committed(stack)
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ToolError(f"{file.relative_to(ROOT)} cannot be read: {error}. Fix: write it as UTF-8 text") from error


def _secrets_of(text: str) -> dict[str, str]:
    """Return Pulumi's own keys. A file that is not YAML has none: Pulumi itself will say what is wrong with it."""
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError):
        return {}
    if not isinstance(document, dict):
        return {}
    return {key: str(document[key]) for key in SECRETS_KEYS if key in document}
