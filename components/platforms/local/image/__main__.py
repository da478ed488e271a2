"""`python -m components.platforms.local.image build` builds the golden image if it is not cached."""

from __future__ import annotations

import signal
import sys

from components.platforms.local.image import ensure_image
from trainyard.errors import PlatformError


def _interrupt(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def main(arguments: list[str]) -> int:
    """Build the image and print its folder. Returns 1 if the build fails, and 2 for invalid arguments."""
    if arguments != ["build"]:
        sys.stderr.write("usage: python -m components.platforms.local.image build\n")
        return 2
    # By default, SIGTERM would end the process without removing the incomplete image.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        sys.stdout.write(f"{ensure_image().folder}\n")
    except PlatformError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
