"""What an account has of the quotas that a stack needs, asked of the cloud's own command line program.

verdict.py is pure; azure.py and gcp.py each know one program's commands and answers; ask.py runs it. A new cloud: a
module with `PROGRAM` and `usage(stack_place, run)`, and its line in ask.py.
"""
