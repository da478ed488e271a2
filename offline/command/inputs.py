"""Check the inputs of a remote command against the classes in the official SDK."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from offline.resources import Failure
from offline.values import Properties, bare, secret

if TYPE_CHECKING:
    from offline.cloud.sdk import Described, Sdk

TOKEN = "command:remote:Command"  # noqa: S105 - a resource type
_REFUSAL = (
    "only keys without a password are supported. "
    "Fix: set an unencrypted privateKey or agentSocketPath, or install the official plugin"
)
_NO_ENVIRONMENT = Failure("environment", "is not supported. Fix: use `stdin`, or install the official plugin")
_PASSWORDS = ("password", "privateKeyPassword")


@cache
def _described() -> tuple[Sdk, Described]:
    from offline.cloud.sdk import Sdk  # noqa: PLC0415 - the engine waits for the plugin's start

    sdk = Sdk("pulumi_command")
    return sdk, sdk.describe(TOKEN)


def check(inputs: Properties) -> tuple[Properties, list[Failure]]:
    """Return all problems, and the inputs. `connection` becomes a secret, as in the official plugin."""
    from offline.cloud.checking import Checker  # noqa: PLC0415 - the engine waits for the plugin's start

    sdk, described = _described()
    failures = [*Checker(sdk, described.folder, {}).object(described.inputs, inputs), *_refused(inputs, "connection")]
    if inputs.get("environment") is not None:
        failures.append(_NO_ENVIRONMENT)
    if inputs.get("connection") is None:
        return inputs, failures
    return {**inputs, "connection": secret(inputs["connection"])}, failures


def _refused(inputs: Properties, name: str) -> list[Failure]:
    found = bare(inputs.get(name.rpartition(".")[2]))
    if not isinstance(found, dict):
        return []
    own = [Failure(f"{name}.{key}", _REFUSAL) for key in _PASSWORDS if found.get(key) is not None]
    return [*own, *_refused(found, f"{name}.proxy")]
