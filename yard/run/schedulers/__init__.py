"""Schedulers: Slurm, and yard's runner for clusters without a scheduler."""
