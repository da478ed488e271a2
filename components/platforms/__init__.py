"""The names of the platforms. A program imports only the modules of its platform."""

PLATFORMS = {"azure": "Azure", "gcp": "Gcp", "hosts": "Hosts", "local": "Local"}
"""Class name prefix for each provider. Each package components.platforms.<provider> has spec.py with <Prefix>Spec,
facts.py with FACTS, and platform.py with <Prefix>Platform."""
