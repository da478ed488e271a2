"""Creates token files from JSON lines or synthetic data, and verifies them. The package needs only Python 3.10.

`yard data` copies this folder to a host and runs `python3 -m dataset` there, so the package imports no other modules
from the project. In a checkout, the command is `python3 -m yard.data.dataset`.

A dataset NAME consists of three files. NAME.idx is renamed to its final name last, so if it exists, all files exist.

NAME.bin    token ids, little endian, 2 or 4 bytes each; train.py maps this file into memory
NAME.idx    sizes and offsets of the documents, in the format of Megatron and gpt-neox
NAME.json   size of the vocabulary, and the source of the dataset
"""
