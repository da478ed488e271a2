"""The only reader of pulumi.Config: from configuration to a checked stack, or the run ends with its problems."""

from __future__ import annotations

import json
from typing import Any

import pulumi
from pulumi.runtime.config import CONFIG, is_config_secret

from components.checks import Level
from components.errors import ClusterError
from components.stackfile import CLUSTER_KEY, NAMESPACE, Stack, parse_config


def load_settings() -> Stack:
    """Return the stack. Raises pulumi.RunError, which ends the run with its message alone, before anything is made."""
    file = f"stacks/Pulumi.{pulumi.get_stack()}.yaml"
    # All of our keys, not just the one: a misspelt key must not be ignored in silence.
    ours = [key for key in CONFIG.get() if key.startswith(f"{NAMESPACE}:")]
    config: dict[str, Any] = {key: pulumi.Config(NAMESPACE).get(key.removeprefix(f"{NAMESPACE}:")) for key in ours}
    if CLUSTER_KEY in config:
        config[CLUSTER_KEY] = _structured(config[CLUSTER_KEY])
    try:
        stack = parse_config(config, filter(is_config_secret, ours), file)
    except ClusterError as error:
        raise pulumi.RunError(str(error)) from error
    for remark in stack.remarks:
        tell = pulumi.log.warn if remark.level is Level.WARNING else pulumi.log.info
        # With the check's id: that is what `silence` takes.
        tell(f"{remark.problem.line(file)} [{remark.check}]")
    return stack


def _structured(value: str) -> Any:
    # Pulumi hands a section over as JSON; plain text in its place is refused with the rest of the problems.
    try:
        return json.loads(value)
    except ValueError:
        return value
