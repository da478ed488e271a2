"""`yard preview`: what a stack would be, what it costs and needs, and how that differs from another revision.

describe.py   pure: a stack file to its plan, price, quotas, checks and rendered files (shape.py says in which form)
resources.py  pure: the engine's JSON to the resources that it would make
compare.py    pure: two descriptions to their difference
report.py     pure: all of it about one stack, as the JSON of `--json`
terminal.py, markdown.py   pure: a report to words
engine.py     runs the engine; base.py describes another revision's tree with that tree's own code; command.py joins all

It is a part of yard and not of components: it only looks at stacks, and a cluster comes up without it.
"""
