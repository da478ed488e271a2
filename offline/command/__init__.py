"""Replacement for the pulumi-command plugin, for machines where the official plugin cannot be installed.

It supports one resource, `command:remote:Command`, and runs its commands over SSH with asyncssh. The behaviour follows
the official plugin (pulumi/pulumi-command@v1.2.1:provider/pkg/provider/remote, read 2026-11-22), so a stack can switch
between the two plugins. Differences:

- `connection.password` and `connection.privateKeyPassword` are rejected. If `privateKey` is set, an SSH agent is used
  only if `agentSocketPath` is also set.
- `environment` is rejected, and the previous output is not passed to the command. This project uses neither.
- All commands for one connection share one SSH login.
- Cancelling an update also ends the remote processes. This requires Linux, and either processes of the login user or
  sudo without a password.
- `perDialTimeout` includes the SSH handshake and login. A connection is closed after a minute without a response.
- With a proxy, a connection attempt consists of the logins to the proxy and to the machine. The dial error limit is
  the sum of both `dialErrorLimit` values.
- Error messages contain the last lines of output, and never a secret command.
"""

VERSION = "1.2.1"
