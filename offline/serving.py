"""The process of a plugin. It exits after a signal from the engine, or when the engine exits."""

from __future__ import annotations

import os
import select
import signal
import stat
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc
from pulumi.runtime.proto import provider_pb2_grpc

_THREADS = 256
"""Each running command uses a thread, and Cancel also needs a thread."""
_MAX_MESSAGE_BYTES = 400 * 1024 * 1024
"""The engine's limit."""
_PARENT_CHECK_SECONDS = 0.5
_ANSWER_SECONDS = 1.0
"""Time limit in seconds for sending the responses of completed operations."""


def engine_address(arguments: list[str]) -> str | None:
    """Return the last argument, which is the engine's address, or None if the arguments contain no address."""
    return arguments[-1] if arguments and ":" in arguments[-1] and not arguments[-1].startswith("-") else None


def serve(provider: provider_pb2_grpc.ResourceProviderServicer, close: Callable[[], None]) -> None:
    """Print the port on standard output and serve. Does not return.

    The process exits after SIGINT, SIGTERM or SIGHUP, or when the engine exits. `close` is called first and must end
    all processes and threads that the provider started.
    """
    parent = os.getppid()
    # Setting an Event in a signal handler can deadlock: the main thread may hold the Event's lock. A pipe cannot
    # deadlock.
    reader, writer = os.pipe()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: os.write(writer, b"."))
    limits = [("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES), ("grpc.max_send_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(_THREADS), options=limits)
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(provider, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    while not select.select([reader], [], [], _PARENT_CHECK_SECONDS)[0] and os.getppid() == parent and not _hung_up():
        pass
    close()
    server.stop(_ANSWER_SECONDS).wait()
    os._exit(0)  # threads may still wait for the engine


def _hung_up() -> bool:
    """Return whether standard input is a pipe whose other end is closed.

    The engine has the other end of the pipe. Unlike os.getppid(), this also detects an engine that exited early.
    """
    try:
        if not stat.S_ISFIFO(os.fstat(0).st_mode):
            return False
    except OSError:
        return False
    poll = select.poll()
    poll.register(0, 0)  # POLLHUP is always reported
    return bool(poll.poll(0))
