"""Runs `yard` for `python -m yard`."""

from yard.cli import app

app()
