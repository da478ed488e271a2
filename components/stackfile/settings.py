"""Reads the stack from pulumi.Config. No other module reads pulumi.Config."""

from __future__ import annotations

import json
import os
from typing import Any

import pulumi
from pulumi.runtime.config import CONFIG, is_config_secret

from components.plan.check import Level
from components.platforms.local.computer import THIS_COMPUTER
from components.stackfile.read import CLUSTER_KEY, NAMESPACE, Stack, parse_config
from trainyard.errors import ClusterError
from trainyard.machines import SOURCE


def load_settings() -> Stack:
    """Return the current stack and log its warnings and notes.

    Raises pulumi.RunError, which Pulumi prints without a traceback.
    """
    file = f"stacks/Pulumi.{os.environ.get(SOURCE) or pulumi.get_stack()}.yaml"
    # All keys in the namespace are read so that misspelt keys are rejected.
    keys = [key for key in CONFIG.get() if key.startswith(f"{NAMESPACE}:")]
    config: dict[str, Any] = {key: pulumi.Config(NAMESPACE).get(key.removeprefix(f"{NAMESPACE}:")) for key in keys}
    if CLUSTER_KEY in config:
        config[CLUSTER_KEY] = _parsed(config[CLUSTER_KEY])
    try:
        stack = parse_config(config, file, secret=is_config_secret(CLUSTER_KEY), computer=THIS_COMPUTER)
    except ClusterError as error:
        raise pulumi.RunError(str(error)) from error
    for finding in stack.findings:
        log = pulumi.log.warn if finding.level is Level.WARNING else pulumi.log.info
        # Users can silence the check by adding its id to `silence`.
        log(f"{finding.problem.line(file)} [{finding.check}]")
    return stack


def _parsed(value: str) -> Any:
    # Pulumi passes sections as JSON. `parse_config` rejects other text.
    try:
        return json.loads(value)
    except ValueError:
        return value
