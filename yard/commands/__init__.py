"""The `yard` commands, by topic. cli.py lists the topics.

`yard` imports all these modules at each start, so slow imports are in the functions that need them.
"""
