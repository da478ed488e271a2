"""Run a job as a task of Prefect 3: python prefect_flow.py ARGUMENTS-OF-YARD-SUBMIT..."""

import sys

from submit import run_job


def train(words: list[str]) -> str:
    """Run a job, and return its run folder. Raises RuntimeError if the job fails, so that Prefect retries the task."""
    ended = run_job(*words)
    if ended["state"] != "COMPLETED":
        raise RuntimeError(f"job {ended['id']} {ended['state']}: {ended['why']}")
    return str(ended["run_dir"])


def main(words: list[str]) -> str:
    try:
        from prefect import flow, task  # noqa: PLC0415
    except ModuleNotFoundError:
        print("prefect is not installed, so the function runs without it")
        return train(words)
    step = task(train, retries=1, retry_delay_seconds=1)

    def training(words: list[str]) -> str:
        return step(words)

    return str(flow(training)(words))


if __name__ == "__main__":
    print(f"results: {main(sys.argv[1:])}")
