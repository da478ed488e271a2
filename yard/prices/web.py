"""HTTP client for public price lists."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from yard.contract.errors import ClusterError

_SECONDS = 30.0
_PAUSES = (2.0, 8.0, 30.0, 60.0)
"""Seconds before each retry."""
_TOO_MANY_REQUESTS = 429
_FIRST_SERVER_ERROR = 500

Fetch = Callable[[str], Any]
"""Function that requests a URL and returns the JSON object. Raises PriceError."""


class PriceError(ClusterError):
    """A price list is unavailable or incomplete."""


class Web:
    """Client for one price list. It rejects URLs whose origin differs from the origin of `base`."""

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
        """Return the JSON object at `url`. Failed connections and responses with status 429 or 5xx are retried."""
        if _origin(url) != self._origin:
            raise PriceError(f"{self._origin} links to another origin, {_origin(url)}. prices.yaml is unchanged")
        for pause in (*_PAUSES, None):
            try:
                return self._once(url)
            except HTTPError as error:
                reason = f"HTTP status {error.code}"
                retry = error.code == _TOO_MANY_REQUESTS or error.code >= _FIRST_SERVER_ERROR
            except (HTTPException, OSError) as error:
                reason, retry = str(getattr(error, "reason", error)), True
            if pause is None or not retry:
                break
            self._pause(pause)
        raise PriceError(f"{self._origin} returned no price list: {reason}. prices.yaml is unchanged")

    def _once(self, url: str) -> dict[str, Any]:
        request = Request(url, headers=self._headers)  # noqa: S310  (the origin was checked)
        with urlopen(request, timeout=self._seconds) as answer:  # noqa: S310
            try:
                found = json.load(answer)
            except ValueError:
                raise PriceError(f"{self._origin} returned text that is not JSON") from None
        if not isinstance(found, dict):
            raise PriceError(f"{self._origin} returned JSON that is not an object")
        return found


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.removesuffix(':443')}"
