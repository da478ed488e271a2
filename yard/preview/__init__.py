"""`yard preview`: resources, prices, quotas and problems of stacks, and the differences from another git revision.

describe.py converts a stack file to a description (shape.py). engine.py runs Pulumi. base.py describes the stacks of
another revision, and compare.py compares two descriptions. content.py contains the text that terminal.py and
markdown.py print.
"""
