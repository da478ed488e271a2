"""Runs a job on a cluster without a scheduler. yard uploads this package with each job.

The package needs only Python 3.10 or newer, and OpenSSH.

__main__.py  the commands: `submit`, `resume` and `run` on the head, `agent` and `sweep` on a node
job.py       reads and writes the files about the job and its state in the run folder
attempt.py   starts the job once: reserves nodes, runs an agent on each of them, and watches the agents
agent.py     runs on a node: starts tasks, and stops them on request or when it loses the connection to the head
"""
