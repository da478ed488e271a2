"""Provider plugins for development: simulated clouds, and a replacement for pulumi-command."""
