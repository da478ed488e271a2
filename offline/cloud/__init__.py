"""Simulated clouds: replacements for the azure-native and gcp plugins that need no network and no account.

They check inputs against the classes in the official SDKs (sdk.py, checking.py), invent outputs that stay the same in
every run (outputs.py, azure.py, gcp.py), keep each resource in a file (world.py), and inject faults (faults.py).
Google Cloud also answers Google's REST requests (rest.py), for the official plugin (official.py).
docs/dev/offline.md describes the simulation.
"""
