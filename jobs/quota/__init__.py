"""An account's quotas, APIs and machine types, read with the cloud's own command line program.

verdict.py is pure; azure.py and gcp.py each contain one program's commands and answers; ask.py runs it. To add a cloud,
write a module with `PROGRAM`, `LOGIN`, `usage`, `command` and `notes`, and add its line to ask.py.
"""
