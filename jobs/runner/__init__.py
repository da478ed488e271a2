"""What runs a job where there is no scheduler. It travels with the job and needs Python 3.10 and OpenSSH, nothing else.

__main__.py   the ways in: `submit` and `run` on the head, `agent` and `sweep` on a node
job.py        the job and its state, as files of the run folder
claim.py      which nodes: each has one job at a time, and jobs get them in the order of their numbers
attempt.py    one start: an agent on every node, watched until the end
agent.py      on a node: starts its tasks, and ends all of them, exactly, when told to or when nobody asks any more
processes.py  ending processes: groups, and whatever carries the job's mark
"""
