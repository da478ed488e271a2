"""An executing stand-in for the pulumi-command plugin: the same resources, run over the OpenSSH client.

Semantics are those of the official plugin 1.2.1, read in its source (github.com/pulumi/pulumi-command); a stack can go
from one to the other without a change showing. What differs:

- Keys only: `connection.password` and `privateKeyPassword` are refused, with the way out in the message. Where a
  `privateKey` is given, an ssh agent is asked only if `agentSocketPath` names it.
- `environment` and the previous output reach the command whether or not sshd accepts variables: they are read from
  standard input by the remote shell (which must be a POSIX one then), so they are in no process's arguments.
- A cancelled deployment also ends the remote process, where the machine has Linux's /proc and the user may signal it
  (itself, or by sudo without a password).
- `perDialTimeout` covers the ssh handshake too, and a machine that falls silent is given up after a minute.
- A failure shows the last lines of output, and never the text of a secret command.
- `command:remote:CopyFile` (deprecated) and `assetPaths`/`archivePaths` are refused.
- One attempt to connect through a proxy covers both hops, so their `dialErrorLimit`s and `perDialTimeout`s add up.
"""

VERSION = "1.2.1"
