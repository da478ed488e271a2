"""Print the version that a plugin reports: `python -m tests.official.reported PROGRAM`."""

from __future__ import annotations

import subprocess
import sys

import grpc
from google.protobuf import empty_pb2
from pulumi.runtime.proto import provider_pb2_grpc

_SECONDS = 60


def reported_version(program: str) -> str:
    """Start a plugin as the engine does, and return its version."""
    nobody = "127.0.0.1:1"
    with subprocess.Popen([program, nobody], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout
            port = int(process.stdout.readline())
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                provider = provider_pb2_grpc.ResourceProviderStub(channel)
                return str(provider.GetPluginInfo(empty_pb2.Empty(), timeout=_SECONDS).version)
        finally:
            process.kill()


if __name__ == "__main__":
    sys.stdout.write(f"{reported_version(sys.argv[1])}\n")
