"""Simulated clouds: replacements for the azure-native and gcp plugins that need no network and no account.

Inputs are compared with the classes in the official SDKs (sdk.py, checking.py). Outputs are invented but
stable (outputs.py, azure.py, gcp.py). Resources are files in a folder (world.py). Faults can be injected (faults.py).
docs/offline.md describes the simulation.
"""
