"""An executing stand-in for the pulumi-command plugin: `command:remote:Command` over the OpenSSH client."""
