"""`python -m jobs` is `yard`."""

from jobs.cli import app

app()
