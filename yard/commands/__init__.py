"""The `yard` commands, one module for each topic, and shell completion.

To add a topic, add a module with a Typer `app` to this package, and to `TOPICS` in yard/cli.py. Every command imports
all modules in this package, so slow imports are placed in the functions that need them.
"""
