"""The error that this package raises."""

from __future__ import annotations


class DatasetError(Exception):
    """A file or an option is invalid. The message contains the problem and a fix."""

    def __init__(self, problem: str, fix: str) -> None:
        end = "\n" if "\n" in problem else ". "
        super().__init__(f"{problem}{end}Fix: {fix}.")
