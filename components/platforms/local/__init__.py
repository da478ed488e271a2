"""The local platform: a cluster of QEMU machines on this computer. Pulumi's dynamic provider imports this package."""
