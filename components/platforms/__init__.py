"""The names of the platforms. Only the modules of the selected platform are imported."""

PLATFORMS = {"azure": "Azure", "gcp": "Gcp", "hosts": "Hosts", "local": "Local"}
"""Mapping from provider to class name prefix. Each package components.platforms.<provider> has spec.py with
<Prefix>Spec, facts.py with FACTS, and platform.py with <Prefix>Platform."""
