"""The commands of `yard`, one module for each topic.

A new one: a module here with `register(app)`, and its place in `TOPICS` of jobs/cli.py. Every command loads every
module of this package, so whatever takes time to import is imported inside the function that needs it.
"""
