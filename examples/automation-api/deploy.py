"""Preview, deploy or destroy one of this checkout's stacks from Python: python deploy.py preview|up|destroy STACK."""

import sys
from pathlib import Path

from pulumi import automation

CHECKOUT = Path(__file__).resolve().parents[2]


def main() -> None:
    verb, name = sys.argv[1:]
    # The program, its stack file and its Python environment come from the checkout. As with the CLI, the backend and
    # the passphrase come from the environment.
    stack = automation.create_or_select_stack(name, work_dir=str(CHECKOUT))
    if verb == "preview":
        stack.preview(on_output=print)
    elif verb == "up":
        print(f"head: {stack.up(on_output=print).outputs['head_address'].value}")
    elif verb == "destroy":
        # The shared files are protected, so they are kept while all other resources are deleted.
        stack.destroy(on_output=print, exclude_protected=True)
    else:
        sys.exit(f"'{verb}' is not preview, up or destroy")


main()
