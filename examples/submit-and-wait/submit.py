"""Submit a job, wait until it has ended, and print its log: python submit.py ARGUMENTS-OF-YARD-SUBMIT..."""

import json
import subprocess
import sys
from typing import Any

VERSION = 1
"""The version of the documents that this program reads (docs/outputs.md)."""


def yard(command: str, *words: str) -> Any:
    """Run a yard command, and return the document that it prints. Raises RuntimeError if the command fails."""
    done = subprocess.run(["yard", command, "--json", *words], stdout=subprocess.PIPE, text=True, check=False)
    document = json.loads(done.stdout)
    if "error" in document:
        raise RuntimeError(document["error"])
    if document["version"] != VERSION:
        raise RuntimeError(f"yard {command} prints version {document['version']} of its document, not {VERSION}")
    return document


def run_job(*words: str) -> Any:
    """Submit a job with the arguments of `yard submit`, print its log, and return the job when it has ended."""
    job = yard("submit", *words)
    print(f"job {job['id']} in {job['run_dir']}", flush=True)
    ended = yard("wait", str(job["id"]))
    print("\n".join(yard("logs", str(job["id"]))["lines"]))
    print(f"{ended['state']}: {ended['why']}")
    if ended["node_fault"]:
        print(ended["node_fault"])
    return ended


if __name__ == "__main__":
    try:
        job = run_job(*sys.argv[1:])
    except RuntimeError as error:
        sys.exit(str(error))
    sys.exit(0 if job["state"] == "COMPLETED" else 1)
