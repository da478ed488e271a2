"""Provider plugins of the project's own, for machines where the official ones cannot be installed."""
