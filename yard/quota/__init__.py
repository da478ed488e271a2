"""Reads a cloud account's quotas, APIs and machine types with the cloud's CLI.

account.py runs the CLI. azure.py and gcp.py contain the commands and parsers. verdict.py compares quotas. To add a
cloud, add a module with `PROGRAM`, `LOGIN`, `usage`, `command`, `notes` and `available`, and register it in account.py.
"""
