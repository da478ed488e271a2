"""A plugin's process: serves until the engine asks it to end or is gone, and takes everything it started with it."""

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
"""A command holds a thread while it runs, and Cancel must still find one."""
_MAX_MESSAGE_BYTES = 400 * 1024 * 1024
"""The engine's own limit."""
_PARENT_CHECK_SECONDS = 0.5


def engine_address(arguments: list[str]) -> str | None:
    """Find the engine's address among a plugin's arguments: the last one, after flags."""
    return arguments[-1] if arguments and ":" in arguments[-1] and not arguments[-1].startswith("-") else None


def serve(provider: provider_pb2_grpc.ResourceProviderServicer, close: Callable[[], None]) -> None:
    """Print the port on standard output and serve. Ends the process on SIGINT, SIGTERM or the engine's death.

    `close` ends what the provider runs and removes what it left.
    """
    parent = os.getppid()
    # A pipe, since a handler runs between any two steps of the main thread: an Event's lock might be that thread's own.
    asked, ask = os.pipe()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: os.write(ask, b"."))
    limits = [("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES), ("grpc.max_send_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(_THREADS), options=limits)
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(provider, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    while not select.select([asked], [], [], _PARENT_CHECK_SECONDS)[0] and os.getppid() == parent and not _hung_up():
        pass
    close()
    server.stop(None)
    os._exit(0)  # threads that wait for the engine's answer must not hold the process up


def _hung_up() -> bool:
    """Tell whether standard input is a pipe that nobody writes to any longer.

    The engine keeps the other end. This also finds an engine that died before we could learn who it was.
    """
    try:
        if not stat.S_ISFIFO(os.fstat(0).st_mode):
            return False
    except OSError:
        return False
    poll = select.poll()
    poll.register(0, 0)  # a hang-up is always reported
    return bool(poll.poll(0))
