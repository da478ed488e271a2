"""Runs a job on a cluster without a scheduler. yard uploads this package with each job.

The package needs only Python 3.10 or newer and OpenSSH.

__main__.py   commands: `submit`, `resume` and `run` on the head, `agent` and `sweep` on a node
job.py        the job and its state, as files in the run folder
claim.py      reserves nodes for a job
attempt.py    one start of the job: runs an agent on each node and watches them
node.py       the head's connections to a node
agent.py      runs on a node: starts the tasks, and stops them on request or if the connection to the head is lost
processes.py  kills processes of a job
"""
