"""`python -m components.platforms.local.image build|path`: build the golden image, or say where it is."""

from __future__ import annotations

import signal
import sys

from components.errors import PlatformError
from components.platforms.local.image.cache import ensure_image, find_image, image_id


def _interrupt(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def main(arguments: list[str]) -> int:
    """Print the image's folder. Exit status 1: `path` found none or `build` failed; 2: neither was asked for."""
    if arguments not in (["build"], ["path"]):
        sys.stderr.write("usage: python -m components.platforms.local.image build|path\n")
        return 2
    # A build that is told to end cleans up like an interrupted one.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        image = ensure_image() if arguments == ["build"] else find_image(image_id())
    except PlatformError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    if image is None:
        sys.stderr.write("golden image: not built yet. Fix: python -m components.platforms.local.image build\n")
        return 1
    sys.stdout.write(f"{image.folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
