"""JSON from a vendor's public endpoint. It tries again where that may help, and gives up in words where it does not."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from components.errors import ClusterError

_SECONDS = 30.0
_TRIES = 5
_LONGEST_PAUSE = 60.0
_TOO_MANY_REQUESTS = 429
_FIRST_SERVER_ERROR = 500

Fetch = Callable[[str], Any]
"""From an address to its parsed JSON object. Raises PriceError."""


class PriceError(ClusterError):
    """A price list that cannot be had, or not whole."""


class Web:
    """Fetches from the host of `base` alone: an answer's link to its next page may lead nowhere else."""

    def __init__(
        self,
        base: str,
        headers: Mapping[str, str] | None = None,
        *,
        pause: Callable[[float], None] = time.sleep,
        seconds: float = _SECONDS,
    ) -> None:
        self._origin = _origin(base)
        self._headers = {"Accept": "application/json", "User-Agent": "trainyard", **(headers or {})}
        self._pause = pause
        self._seconds = seconds

    def __call__(self, url: str) -> dict[str, Any]:
        """Return the JSON object at `url`. 429, 5xx and silence are met with growing pauses; nothing else is."""
        if _origin(url) != self._origin:
            raise PriceError(f"{self._origin} sends us on to {_origin(url)}; the price list is not read from there")
        reason = ""
        for tried in range(_TRIES):
            if tried:
                self._pause(min(2.0**tried, _LONGEST_PAUSE))
            try:
                return self._once(url)
            except HTTPError as error:
                reason = f"HTTP status {error.code}"
                if error.code != _TOO_MANY_REQUESTS and error.code < _FIRST_SERVER_ERROR:
                    break
                self._wait_as_told(error)
            except (URLError, HTTPException, OSError) as error:
                reason = str(getattr(error, "reason", error))
        raise PriceError(f"{self._origin} gives no price list: {reason}. The file of prices stays as it is")

    def _once(self, url: str) -> dict[str, Any]:
        request = Request(url, headers=self._headers)  # noqa: S310  (of this origin, which is ours)
        with urlopen(request, timeout=self._seconds) as answer:  # noqa: S310
            try:
                found = json.load(answer)
            except ValueError:
                raise PriceError(f"{self._origin} answers with something that is not JSON") from None
        if not isinstance(found, dict):
            raise PriceError(f"{self._origin} answers in an unknown form: not an object")
        return found

    def _wait_as_told(self, error: HTTPError) -> None:
        told = error.headers.get("Retry-After", "")
        if told.isdecimal():
            self._pause(min(float(told), _LONGEST_PAUSE))


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.removesuffix(':443')}"
