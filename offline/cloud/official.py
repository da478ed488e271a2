"""Runs a Google Cloud stack with the official pulumi-gcp plugin, whose requests go to the simulated cloud's API."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import grpc
import yaml
from google.protobuf import empty_pb2
from pulumi.runtime.proto import provider_pb2_grpc

from offline.cloud.rest import serving
from offline.cloud.world import World
from trainyard.project import ROOT
from yard.stack.workspace import HOME, SHOW, Workspace, copy_of, platform_section

_STEPS = (("up",), ("refresh", "--expect-no-changes"), ("up", "--expect-no-changes"), ("destroy",))
_SERVICES = {"COMPUTE": "compute", "FILESTORE": "file", "IAM": "iam", "IAM_BETA": "iam", "RESOURCE_MANAGER": "crm"}
_CREDENTIALS = ("GOOGLE_", "GCLOUD_", "CLOUDSDK_")
"""Prefixes of the variables with the user's credentials and settings."""
_SECONDS = 60


def program(plugin: str, home: Path) -> Path:
    """Return the path of an official plugin's program in a Pulumi home. A plugin has the version of its SDK."""
    return home / f"plugins/resource-{plugin}-v{version(f'pulumi-{plugin}')}/pulumi-resource-{plugin}"


def use(plugin: str, home: Path, environment: Mapping[str, str]) -> None:
    """Use the official plugin in `home` in an environment for simulated clouds, in place of this project's plugin."""
    link = program(plugin, Path(environment["PULUMI_HOME"]))
    link.unlink()
    link.symlink_to(program(plugin, home))


def reported_version(program: Path) -> str:
    """Start a plugin as the engine does, and return its version."""
    engine = "127.0.0.1:1"  # nothing listens at this address
    with subprocess.Popen([program, engine], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            port = int(process.stdout.readline() if process.stdout else 0)
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                provider = provider_pb2_grpc.ResourceProviderStub(channel)
                return str(provider.GetPluginInfo(empty_pb2.Empty(), timeout=_SECONDS).version)
        finally:
            process.kill()


def api_environment(environment: Mapping[str, str], url: str) -> dict[str, str]:
    """Return the variables with which the plugin sends its requests to `url`, without the user's credentials."""
    kept = {name: value for name, value in environment.items() if not name.startswith(_CREDENTIALS)}
    return {
        **kept,
        **{f"GOOGLE_{name}_CUSTOM_ENDPOINT": f"{url}/{service}/v1/" for name, service in _SERVICES.items()},
        "GOOGLE_OAUTH_ACCESS_TOKEN": "made-up",
        "PULUMI_GCP_SKIP_REGION_VALIDATION": "true",
        # The plugin asks another server for the user's name and waits for the answer. The API refuses the request.
        **dict.fromkeys(("HTTPS_PROXY", "https_proxy"), url),
        **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost"),
    }


def run_official(stack: str, home: Path) -> int:
    """Run `up`, `refresh`, `up` and `destroy`, print what ran, and return the exit code.

    `home` is the Pulumi home with the official plugin.
    """
    if platform_section(stack).get("provider") != "gcp":
        sys.stderr.write(f"error: '{stack}' is no Google Cloud stack. Fix: use a stack with `provider: gcp`\n")
        return 2
    official = program("gcp", home)
    if not os.access(official, os.X_OK) or _is_script(official):
        wanted = version("pulumi-gcp")
        sys.stderr.write(
            f"error: the official plugin pulumi-gcp {wanted} is not installed ({official}). Nothing was run.\n"
            f"Fix: run `PULUMI_HOME={home} pulumi plugin install resource gcp {wanted}` with access to the download "
            "server, or add `--file PROGRAM`, with the plugin's program from another computer\n"
        )
        return 3
    workspace = Workspace(stack, simulated=True, home=HOME / "official")
    use("gcp", home, workspace.environment)
    world = World(stack, workspace.home / "clouds")
    name = f"official pulumi-gcp {reported_version(official)} (version of the SDK: {version('pulumi-gcp')})"
    with serving(world) as (url, requests):
        workspace.environment = api_environment(workspace.environment, url)
        workspace.clear_lock()
        step, code = "init", workspace.init()
        file = copy_of(stack, workspace.home)
        if code == 0:
            _unprotect(file)
        for number, (verb, *options) in enumerate(_STEPS, 1):
            if code:
                break
            step = f"step {number} of {len(_STEPS)} ({' '.join((verb, *options))})"
            sys.stderr.write(f"{stack}: {step}\n")
            arguments = [verb, "-s", stack, "--config-file", str(file), "--yes", "--skip-preview", *SHOW, *options]
            code = workspace.run(arguments, workspace.environment, ROOT)
    left = [found.id for found in world.records()]
    refused = [line for line in requests if line.startswith("CONNECT ")]
    text = f"{len(requests) - len(refused)} requests to the simulated API, {len(refused)} to other hosts refused"
    if code or left:
        sys.stderr.write(f"{stack}: FAILED at {step}, with the {name}; {text}; left: {', '.join(left) or 'nothing'}\n")
        return code or 1
    sys.stdout.write(f"{stack}: up, refresh, up and destroy succeeded with the {name}; {text}; no resource left\n")
    return 0


def _is_script(file: Path) -> bool:
    """Return whether a plugin's program is a script, as this project's plugins are."""
    with file.open("rb") as content:
        return content.read(2) == b"#!"


def _unprotect(file: Path) -> None:
    """Let `destroy` delete the shared storage."""
    content = yaml.safe_load(file.read_text())
    content["config"]["trainyard:cluster"]["platform"]["protect_storage"] = False
    file.write_text(yaml.safe_dump(content))


if __name__ == "__main__":
    sys.stdout.write(f"{reported_version(Path(sys.argv[1]))}\n")
