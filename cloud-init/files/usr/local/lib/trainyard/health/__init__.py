"""Checks of a node's health: data (checks.json, xid.json), check functions, verdicts, and the daemon."""
