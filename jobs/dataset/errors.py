"""The one failure of this package that explains itself."""

from __future__ import annotations


class DatasetError(Exception):
    """Something is wrong with a file or a request: what, and what to do."""

    def __init__(self, what: str, fix: str) -> None:
        end = "\n" if "\n" in what else ". "
        super().__init__(f"{what}{end}Fix: {fix}.")
