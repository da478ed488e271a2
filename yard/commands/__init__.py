"""The `yard` commands, by topic.

`yard` imports all of these modules whenever it starts, so slow imports are in the functions that need them.
"""
