"""Writes a new stack file (`yard init`).

command.py combines the parts. azure.py, gcp.py, hosts.py and local.py contain the parts of one platform, and
platforms.py lists them. To add a platform, add a module with a `STARTER`, and list the module in platforms.py.
"""
