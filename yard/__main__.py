"""Runs `yard` for `python -m yard`."""

from yard.commands.cli import app

app()
