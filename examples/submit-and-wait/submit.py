"""Submit a job, wait until it has ended, and print its log: python submit.py ARGUMENTS-OF-YARD-SUBMIT..."""

import json
import subprocess
import sys
from typing import Any


def yard(*words: str) -> Any:
    """Run a yard command with --json. Return the document that it prints, or exit with its error message."""
    done = subprocess.run(["yard", *words], stdout=subprocess.PIPE, text=True, check=False)
    document = json.loads(done.stdout)
    if "error" in document:
        sys.exit(document["error"])
    return document


def main() -> None:
    job = yard("submit", "--json", *sys.argv[1:])
    print(f"job {job['id']} in {job['run_dir']}")
    ended = yard("wait", "--json", str(job["id"]))
    print("\n".join(yard("logs", "--json", str(job["id"]))["lines"]))
    print(f"{ended['state']}: {ended['why']}")
    sys.exit(0 if ended["state"] == "COMPLETED" else 1)


main()
