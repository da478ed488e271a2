"""Simulated clouds: stand-ins for the azure-native and gcp plugins that touch no network and need no account.

Inputs are held against the real SDK's own classes (sdk.py, kinds.py, checking.py), outputs are made up but stable
(outputs.py and one module per cloud), and what was made lies in a folder (world.py) that can be told to misbehave
(faults.py). docs/offline.md says what is simulated and what is not.
"""
