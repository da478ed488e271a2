"""Runs a job on a cluster without a scheduler. yard uploads this package with each job.

The package needs only Python 3.10 or newer and OpenSSH.

__main__.py  commands: `submit`, `resume` and `run` on the head, `agent` and `sweep` on a node
job.py       the job and its state, as files in the run folder
attempt.py   one start of the job: reserves nodes, runs an agent on each of them and watches the agents
agent.py     runs on a node: starts the tasks, and stops them on request or if the connection to the head is lost
"""
