"""Token files: made from JSON lines in parallel, made from nothing, and checked. Python 3.10 and its library alone.

This folder travels: `yard data` sends it to a host and runs `python3 -m dataset` there, so it imports nothing of the
rest of the project. Here it is `python3 -m jobs.dataset`.

A dataset NAME is three files, and NAME.idx is the last to appear, by renaming: whoever finds it finds all.

NAME.bin    token ids, little endian, 2 or 4 bytes each: what train.py maps into memory
NAME.idx    sizes and places of the documents, as Megatron and gpt-neox read them
NAME.json   the vocabulary's size, and what it was made from
"""
