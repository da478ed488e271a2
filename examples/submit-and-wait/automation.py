"""Run a job on a stack that Pulumi's Automation API reads: python automation.py PROJECT STACK SUBMIT-ARGUMENTS...

The program needs the Pulumi CLI and the stack's passphrase. The job needs only the key of the job user.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from pulumi import automation
from submit import run_job


def main() -> int:
    project, name, *words = sys.argv[1:]
    outputs = automation.select_stack(name, work_dir=project).outputs()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "outputs.json"
        file.touch(mode=0o600)
        file.write_text(json.dumps({key: outputs[key].value for key in ("cluster", "user_private_key")}))
        os.environ["TRAINYARD_OUTPUTS"] = str(file)
        return 0 if run_job(*words)["state"] == "COMPLETED" else 1


if __name__ == "__main__":
    sys.exit(main())
