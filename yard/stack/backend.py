"""The backend and the stack that `pulumi` uses in the current shell, read from Pulumi's files.

Sources: pulumi/pulumi v3.250.0, pkg/workspace/creds.go, pkg/workspace/workspace.go, pkg/backend/state/stacks.go and
pkg/backend/diy/backend.go, 2026-11-22. Each pulumi command takes half a second, so yard does not call pulumi for this.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainyard import checkout

_CLOUD = "https://api.pulumi.com"
_PRIVATE = "/.trainyard/state"
"""End of the path in the backend URL that env.sh sets."""
_DIY_ORGANIZATION = "organization"
"""Organization of all stacks in a backend other than Pulumi Cloud."""


def backend_url(variables: Mapping[str, str]) -> str:
    """Return the URL of the backend that `pulumi` uses with these variables, or an empty string without a login."""
    if url := variables.get("PULUMI_BACKEND_URL") or _project_backend():
        return url
    folder = variables.get("PULUMI_CREDENTIALS_PATH")
    current = _json(Path(folder) if folder else _home(variables), "credentials.json").get("current")
    return str(current or (_CLOUD if variables.get("PULUMI_ACCESS_TOKEN") else ""))


def is_chosen(variables: Mapping[str, str]) -> bool:
    """Return whether the user selected a backend with a variable, `pulumi login` or Pulumi.yaml."""
    url = backend_url(variables)
    return bool(url) and not url.partition("?")[0].endswith(_PRIVATE)


def backend_folder(variables: Mapping[str, str]) -> Path | None:
    """Return the folder of a file:// backend, or None for any other backend."""
    url = backend_url(variables)
    if not url.startswith("file://"):
        return None
    path = url.removeprefix("file://").partition("?")[0]
    expanded = _user_home() / path.removeprefix("~").lstrip("/") if path.startswith("~") else Path(path)
    return (checkout.ROOT / expanded) if checkout.exists() else expanded.absolute()


def state_file(variables: Mapping[str, str], stack: str) -> Path | None:
    """Return the path of the stack's state in a file:// backend, or None for any other backend."""
    backend = backend_folder(variables)
    name = stack.rpartition("/")[2]
    return backend / ".pulumi" / "stacks" / checkout.PROJECT / f"{name}.json" if backend else None


def selected_stack(variables: Mapping[str, str]) -> str | None:
    """Return the stack selected with PULUMI_STACK or `pulumi stack select`, or None if no stack is selected.

    The name contains the organization only on Pulumi Cloud.
    """
    name = variables.get("PULUMI_STACK") or _recorded_stack(variables)
    parts = name.split("/")
    return parts[-1] if parts[0] == _DIY_ORGANIZATION else name or None


def _recorded_stack(variables: Mapping[str, str]) -> str:
    # Pulumi hashes the path of Pulumi.yaml as the shell shows it. This path can contain symbolic links.
    shell = Path(variables.get("PWD", ""))
    logical = [
        folder for folder in (shell, *shell.parents) if folder.is_absolute() and folder.resolve() == checkout.ROOT
    ]
    for folder in (*logical, checkout.ROOT):
        digest = hashlib.sha1(str(folder / "Pulumi.yaml").encode(), usedforsecurity=False).hexdigest()
        found = _json(_home(variables) / "workspaces", f"{checkout.PROJECT}-{digest}-workspace.json").get("stack")
        if found:
            return str(found)
    return ""


def _project_backend() -> str:
    """Return `backend.url` of Pulumi.yaml, or an empty string."""
    try:
        text = (checkout.ROOT / "Pulumi.yaml").read_text()
    except OSError:
        return ""
    if "backend" not in text:
        return ""
    import yaml  # noqa: PLC0415  (most projects do not need this slow import)

    try:
        return str(yaml.safe_load(text)["backend"]["url"])
    except (yaml.YAMLError, KeyError, TypeError):
        return ""


def _home(variables: Mapping[str, str]) -> Path:
    return Path(variables.get("PULUMI_HOME") or _user_home() / ".pulumi")


def _user_home() -> Path:
    # Pulumi ignores HOME if the user is in the passwd database.
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return Path.home()


def _json(folder: Path, name: str) -> dict[str, Any]:
    try:
        found = json.loads((folder / name).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
