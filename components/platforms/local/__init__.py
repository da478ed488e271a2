"""The local platform: a cluster of QEMU machines on this one. Empty: the engine's plugin imports what lies in here."""
