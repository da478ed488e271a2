"""`yard preview`: shows each stack's resources, prices, quotas and problems, and its differences from a git revision.

describe.py checks and plans a stack file, engine.py runs Pulumi, and account.py reads the cloud account. difference.py
compares a stack with another revision. report.py combines these results, and printing.py prints them.
"""
