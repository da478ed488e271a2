"""Trains a GPT with DDP or FSDP2, with checkpoints that any number of ranks can load.

The program needs only torch, the standard library, and train_model.py in the same folder. --float8 also needs torchao.
Each rank needs RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, or Slurm's variables, in its environment.
Each step's batch is divided among the ranks, and depends only on the seed and the step. A resumed run therefore
produces the same losses as an uninterrupted one, on any number of ranks. In the run directory, rank 0 writes a JSON
object per line to metrics.jsonl, and each rank writes a file heartbeat-RANK every 5 seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING or __package__:
    from yard.workloads import train_model as gpt
else:
    import train_model as gpt  # on a node, the module is in the same folder

WARM_UP_STEPS = 10
"""The number of initial steps that the statistics exclude, because of compilation, allocation and connection set-up."""
TIMEOUT = timedelta(minutes=5)
"""The timeout for collectives, which ends a run with a frozen rank. It must exceed the duration of the longest step."""
SAVE_TIMEOUT = timedelta(hours=1)
"""The timeout for checkpoints. A checkpoint of the 20b preset has 240 GB, and storage can be slow."""
_HEARTBEAT_SECONDS = 5.0
_RANK_SECONDS = 10.0
"""The least time between two records of each rank's own time, because a record of many ranks is long."""
_RANK_VARIABLES = (
    ("RANK", "SLURM_PROCID", "0"), ("WORLD_SIZE", "SLURM_NTASKS", "1"), ("LOCAL_RANK", "SLURM_LOCALID", "0"),
)  # fmt: skip
"""In each row: torch's variable, Slurm's variable, and the default value, which is correct for a single process."""


def rank_from_environment() -> tuple[int, int, int]:
    """Return the rank, the world size and the local rank. Slurm's variables are used if torch's are missing."""
    for name, slurm, default in _RANK_VARIABLES:
        os.environ.setdefault(name, os.environ.get(slurm, default))
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])


def step_dir(run_dir: Path, step: int) -> Path:
    return run_dir / f"step-{step:08d}"


def is_whole(folder: Path) -> bool:
    """Return whether a checkpoint is complete. torch creates .metadata when all ranks have written their files."""
    return (folder / ".metadata").is_file()


def latest_step(run_dir: Path) -> int | None:
    """Return the step in the file `latest`, or None if that step has no complete checkpoint."""
    try:
        step = int((run_dir / "latest").read_text())
    except (FileNotFoundError, ValueError):
        return None
    return step if is_whole(step_dir(run_dir, step)) else None


def distrust(run_dir: Path, step: int) -> str:
    """Return the reason why a checkpoint must not be loaded, or '' if loading it is safe.

    torch unpickles .metadata, which can run code. Therefore, only this user, root and the user's own group are allowed
    to have write access to the run directory and the checkpoint.
    """
    folder = step_dir(run_dir, step)
    for path in (run_dir, run_dir / "latest", folder, *folder.iterdir()):
        found = path.stat()
        if found.st_uid not in {os.geteuid(), 0}:
            return f"{path} belongs to uid {found.st_uid}"
        if found.st_mode & (0o002 if found.st_gid == os.getegid() else 0o022):
            return f"other users can write to {path}"
    return ""


def publish(run_dir: Path, step: int, keep: int) -> None:
    """Write `step` to `latest` atomically, and delete all checkpoints up to `step` except the last `keep` complete
    ones."""
    fresh = run_dir / "latest.new"
    with fresh.open("w") as file:
        file.write(f"{step}\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(run_dir / "latest")
    older = sorted(path for path in run_dir.glob("step-????????") if int(path.name[5:]) <= step)
    kept = [path for path in older if is_whole(path)][-keep:]
    for path in set(older) - set(kept):
        shutil.rmtree(path, ignore_errors=True)


class Data:
    """The training data: synthetic tokens, or a memory-mapped file of unsigned token ids."""

    def __init__(self, torch: Any, options: argparse.Namespace, shape: gpt.Shape) -> None:
        self.torch, self.shape, self.seed, self.source = torch, shape, options.seed, options.data
        self.tokens, self.mask = None, (1 << 8 * options.token_bytes) - 1
        if self.source == "synthetic":
            return
        if not os.path.isfile(self.source):
            raise SystemExit(f"train: --data {self.source} is not a file. Fix: use a file of token ids, or 'synthetic'")
        count, rest = divmod(os.path.getsize(self.source), options.token_bytes)
        if rest or count < shape.seq + 1:
            raise SystemExit(
                f"train: {self.source} contains {count} tokens of {options.token_bytes} bytes and {rest} extra bytes; "
                f"a window needs {shape.seq + 1} tokens. Fix: prepare more data, or correct --token-bytes"
            )
        self.tokens = torch.from_file(
            self.source, shared=False, size=count, dtype={2: torch.int16, 4: torch.int32}[options.token_bytes]
        )

    def batch(self, step: int, batch: int, first: int, last: int) -> Any:
        """Return the rows from `first` to `last` - 1 in a step's batch. Each row has seq + 1 tokens."""
        generator = self.torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        width = self.shape.seq + 1
        if self.tokens is None:
            # Each row counts up from a random number. The model can learn this pattern, so the loss must fall.
            start = self.torch.randint(0, self.shape.vocab, (batch, 1), generator=generator)
            return ((start + self.torch.arange(width)) % self.shape.vocab)[first:last]
        starts = self.torch.randint(0, len(self.tokens) - width + 1, (batch,), generator=generator)[first:last]
        windows = self.torch.stack([self.tokens[start : start + width] for start in starts.tolist()]).long() & self.mask
        if (largest := int(windows.max())) >= self.shape.vocab:
            raise SystemExit(
                f"train: {self.source} contains token {largest}, but the preset's vocabulary has {self.shape.vocab}. "
                "Fix: tokenise with that vocabulary, choose another preset, or correct --token-bytes"
            )
        return windows


LEAST_CAPABILITY = (8, 9)
"""The lowest compute capability with float8 matrix products.

Sources, read on 2026-11-22: torchao 0.18.0 (5f2baf9), test/float8/test_base.py and torchao/quantization/quant_api.py;
pytorch 0174dfa, aten/src/ATen/native/cuda/ScaledBlas.cpp, the error message of `torch._scaled_mm`.
"""

EAGER_WARNING = (
    "train: warning: --float8 without --compile is slow, because only torch.compile fuses torchao's casts and scales. "
    "Fix: add --compile"
)
"""torchao's docs require torch.compile for high performance, not for correct results.

Source: torchao 0.18.0 (5f2baf9), docs/source/eager_tutorials/pretraining.rst, read on 2026-11-22.
"""


def float8_obstacle(torch: Any) -> str | None:
    """Return the reason why this rank cannot train in float8 (with a fix), or None if it can."""
    cuda = torch.cuda
    if not cuda.is_available():
        return (
            "it needs a CUDA GPU, and torch finds none. "
            "Fix: omit --float8; on a host with a GPU, correct its driver or install a CUDA build of torch"
        )
    if (found := cuda.get_device_capability()) < LEAST_CAPABILITY:
        least, own = (f"{major}.{minor}" for major, minor in (LEAST_CAPABILITY, found))
        return (
            f"it needs compute capability {least} or higher, and {cuda.get_device_name()} has {own}. "
            "Fix: omit --float8, or use newer GPUs (H100, H200, B200)"
        )
    try:
        _torchao()
    except Exception as error:  # an installed torchao that is incompatible with torch can raise any error
        return (
            f"torchao cannot be used ({type(error).__name__}: {error}). Fix: in the job's Python environment, install "
            f"torchao 0.9 or newer, in a release compatible with torch {torch.__version__}, or omit --float8"
        )
    return None


def float8_refusal(torch: Any, dist: Any) -> str:
    """Return one message about all ranks that cannot train in float8, or '' if there are none.

    All ranks must call this function. They get the same result, even if their GPUs and packages differ.
    """
    obstacles: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(obstacles, float8_obstacle(torch))
    ranks: dict[str, list[str]] = {}
    for rank, reason in enumerate(obstacles):
        if reason:
            ranks.setdefault(reason, []).append(str(rank))
    lines = []
    for reason, found in ranks.items():
        where = "all ranks" if len(found) == len(obstacles) else f"rank{'s'[: len(found) - 1]} {', '.join(found)}"
        lines.append(f"train: --float8 is not possible on {where}: {reason}")
    return "\n".join(lines)


def convert_to_float8(model: Any) -> None:
    """Replace the linear layers in the blocks with torchao's float8 layers, before torch.compile and FSDP2 are applied.

    The new layers contain the same parameters, so checkpoints do not depend on --float8. Each tensor has one scale. On
    two H200s, the 13b preset with 22 layers was 1.29 times as fast as in bf16 (docs/dev/benchmarks.md). In a trial,
    the factor was 1.22 with one scale per row, and 1.27 with float8 all-gathers.
    """
    convert_to_float8_training, config = _torchao()
    convert_to_float8_training(model, module_filter_fn=is_converted, config=config)


def is_converted(_module: Any, name: str) -> bool:
    # The logits stay in bf16, as in torchtitan's examples (torchtitan b5bcd76,
    # torchtitan/components/quantization/float8.md, read on 2026-11-22).
    return name.startswith("blocks.")


def _torchao() -> tuple[Any, Any]:
    """Return torchao's function and configuration. Can raise any error if torchao is missing or incompatible.

    torchao has had from_recipe_name since 0.9 (branch release/0.9, torchao/float8/config.py, read on 2026-11-22).
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training  # noqa: PLC0415

    return convert_to_float8_training, Float8LinearConfig.from_recipe_name("tensorwise")


def global_batch(chosen: int | None, ranks: int) -> int:
    """Return the sequences per step, by default one per rank. Raises SystemExit if they cannot be divided equally."""
    if chosen is None:
        return ranks
    if chosen % ranks:
        raise SystemExit(f"train: --batch {chosen} must be a multiple of the world size {ranks}")
    return chosen


class Trainer:
    """One rank of a training run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.shape = gpt.PRESETS[options.preset]
        self.run_dir = Path(options.run_dir)
        self.rank, self.ranks, local = rank_from_environment()
        options.batch = global_batch(options.batch, self.ranks)
        import torch  # noqa: PLC0415  (takes seconds; --help does not need it)
        import torch.distributed as dist  # noqa: PLC0415
        import torch.utils.checkpoint  # noqa: PLC0415

        self.torch, self.dist = torch, dist
        if options.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
        self.cuda = torch.cuda.is_available()
        if self.cuda:
            torch.cuda.set_device(local)
        self.device = torch.device("cuda", local) if self.cuda else torch.device("cpu")
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29500")
        self.rows = options.batch // self.ranks
        self.data = Data(torch, options, self.shape)
        backend = "nccl" if self.cuda else "gloo"
        dist.init_process_group(backend, rank=self.rank, world_size=self.ranks, timeout=TIMEOUT)
        self.savers = dist.new_group(timeout=SAVE_TIMEOUT)
        if options.float8 and (problem := float8_refusal(torch, dist)):
            self._leave(problem)
        with self.device:  # the host's memory can be too small for one model per rank
            model = gpt.build_model(torch, self.shape, options.recompute)
        self.model = self._parallel(model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=options.lr, fused=self.cuda)
        self.step = 0
        self.stop_requested = False
        self.last_heartbeat = 0.0
        self.forwards: list[tuple[Any, Any]] = []
        """The CUDA events around each forward pass since the last record."""
        for number in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, self._stop)

    def _stop(self, *_: object) -> None:
        self.stop_requested = True

    def _parallel(self, model: Any) -> Any:
        model.init_weights(self.options.seed)
        if self.options.float8:
            if not self.options.compile:
                self.say(EAGER_WARNING)
            convert_to_float8(model)
        if self.options.compile:
            for part in (*model.blocks, model.head):
                part.compile()
        if self.options.parallel == "ddp":
            wrap = self.torch.nn.parallel.DistributedDataParallel
            return wrap(model, device_ids=[self.device.index] if self.cuda else None)
        from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: PLC0415

        mesh = init_device_mesh(self.device.type, (self.ranks,))
        kind = self.torch.bfloat16 if self.cuda else None
        policy = MixedPrecisionPolicy(param_dtype=kind, reduce_dtype=self.torch.float32)
        for part in (*model.blocks, model.head):
            fully_shard(part, mesh=mesh, mp_policy=policy)
        return fully_shard(model, mesh=mesh, mp_policy=policy)

    def say(self, text: str) -> None:
        """Print on rank 0."""
        if self.rank == 0:
            print(text, flush=True)

    def _state(self) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_state_dict  # noqa: PLC0415

        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.torch.tensor(self.step)}

    def _meet(self) -> None:
        self.dist.barrier(group=self.savers, device_ids=[self.device.index] if self.cuda else None)

    def save(self) -> float:
        """Write a checkpoint, and return the duration in seconds. If a write fails, all ranks raise SystemExit."""
        import torch.distributed.checkpoint as dcp  # noqa: PLC0415

        begin = time.perf_counter()
        folder = step_dir(self.run_dir, self.step)
        if self.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
        self._meet()
        try:
            dcp.save(self._state(), checkpoint_id=str(folder), process_group=self.savers)
        except (Exception, dcp.CheckpointException) as error:  # CheckpointException derives from BaseException
            reasons = f"rank {self.rank}: {error}"
            if isinstance(error, dcp.CheckpointException):
                # DCP raises this error on all ranks, after they have stopped writing.
                if self.rank == 0:
                    shutil.rmtree(folder, ignore_errors=True)
                reasons = "; ".join(f"rank {rank}: {failure[0]}" for rank, failure in sorted(error.failures.items()))
            # With Python 3.13, torch can raise an unrelated error instead of the cause.
            free = shutil.disk_usage(self.run_dir).free >> 20
            raise SystemExit(
                f"train: the checkpoint {folder} could not be written; {free} MiB are free there ({reasons}). "
                "Fix: free space or correct the permissions; the next start continues from the previous checkpoint"
            ) from error
        self._meet()
        if self.rank == 0:
            publish(self.run_dir, self.step, self.options.keep)
        return time.perf_counter() - begin

    def resume(self) -> None:
        """Load the newest complete checkpoint, which rank 0 selects, because the nodes' NFS caches can differ."""
        found: list[Any] = [None, ""]
        if self.rank == 0 and (newest := latest_step(self.run_dir)) is not None:
            found = [newest, distrust(self.run_dir, newest)]
        self.dist.broadcast_object_list(found, src=0)
        step, reason = found
        if reason:
            self._leave(
                f"train: the checkpoint {step_dir(self.run_dir, step)} is not loaded, because {reason} and could "
                "change what it runs. Fix: use a --run-dir that only you can write to, with your own checkpoints"
            )
        if step is None:
            return
        import torch.distributed.checkpoint as dcp  # noqa: PLC0415
        from torch.distributed.checkpoint.state_dict import set_state_dict  # noqa: PLC0415

        state = self._state()
        dcp.load(state, checkpoint_id=str(step_dir(self.run_dir, step)), process_group=self.savers)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.step = int(state["step"])
        self.say(f"resumed at step {self.step}")

    def advance(self) -> tuple[Any, float]:
        """Run one step. Return this rank's loss as a tensor on the device, and the time spent on loading the batch."""
        begin = time.perf_counter()
        first = self.rank * self.rows
        tokens = self.data.batch(self.step, self.options.batch, first, first + self.rows)
        waited = time.perf_counter() - begin
        tokens = tokens.to(self.device)  # this can wait for the GPU's earlier steps
        forward = self._mark()
        mixed = self.cuda and self.options.parallel == "ddp"
        with self.torch.autocast(self.device.type, dtype=self.torch.bfloat16, enabled=mixed):
            loss = self.model(tokens[:, :-1], tokens[:, 1:])
        self.forwards.append((forward, self._mark()))
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        return loss.detach().float(), waited

    def _mark(self) -> Any:
        """Return the current time in seconds or, on a GPU, an event that the GPU reaches after its earlier work."""
        if not self.cuda:
            return time.perf_counter()
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def rank_ms(self, waits: float, steps: int) -> list[float]:
        """Return each rank's own time in a step, in milliseconds: for the batch and the forward pass.

        In this time, a rank with DDP does not wait for other ranks, so a slow rank is visible. With FSDP2, the forward
        pass contains all-gathers, so that the other ranks would appear slow. All ranks must call this function, after
        the GPU has finished the steps.
        """
        passes = (begin.elapsed_time(end) if self.cuda else (end - begin) * 1e3 for begin, end in self.forwards)
        own = self.torch.zeros(self.ranks, device=self.device)
        own[self.rank] = (waits * 1e3 + sum(passes)) / steps
        self.dist.all_reduce(own)
        return [round(value, 2) for value in own.tolist()]

    def metrics(self, seconds: float) -> dict[str, float | None]:
        """Return the rates of a step that took `seconds`, and the peak memory."""
        options = self.options
        peak = gpt.peak_tflops(self.torch.cuda.get_device_name()) if self.cuda else None
        rates = gpt.rates(self.shape, options.batch, self.ranks, seconds, peak, recompute=options.recompute)
        return {**rates, "peak_memory_gib": self.torch.cuda.max_memory_allocated() / 2**30 if self.cuda else None}

    def run(self) -> NoReturn:
        """Train until the last step or a signal, write a checkpoint unless --save-every is 0, and exit with code 0."""
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self.resume()
        durations: list[float] = []
        done, saved_at, since, waits = 0, self.step, time.perf_counter(), 0.0
        counted, stopping, asked = self.step, False, time.monotonic()
        while self.step < self.options.steps and not stopping:
            loss, waited = self.advance()
            done, waits = done + 1, waits + waited
            self._beat()
            last, saves = self.step == self.options.steps, self.options.save_every
            due = bool(saves) and self.step % saves == 0
            if not (last or due or self.step % self.options.log_every == 0):
                continue
            # Rank 0 decides whether the ranks exchange their own times, because their clocks differ.
            asks = (
                self.rank == 0 and self.options.parallel == "ddp" and (last or time.monotonic() - asked > _RANK_SECONDS)
            )
            flags = self.torch.tensor([float(self.stop_requested), float(asks)], device=self.device)
            shared = self.torch.cat([loss.reshape(1), flags])
            # The loss is read only here, because a read waits for the GPU and for the other ranks.
            self.dist.all_reduce(shared)
            mean, stopping = float(shared[0]) / self.ranks, bool(shared[1])
            seconds = (time.perf_counter() - since) / (self.step - counted)
            # Intervals that overlap the warm-up are excluded.
            if done - (self.step - counted) >= WARM_UP_STEPS:
                durations.append(seconds)
            data_ms = waits / (self.step - counted) * 1e3
            steps = self.step - counted
            record: dict[str, Any] = {"step": self.step, "steps": steps, "loss": mean, "data_ms": data_ms}
            record["last_step"] = self.options.steps
            record |= self.metrics(seconds)
            if bool(shared[2]):
                asked = time.monotonic()
                record["rank_ms"] = self.rank_ms(waits, steps)
            self.forwards.clear()
            if saves and (last or due or stopping):
                record["checkpoint_s"] = self.save()
                saved_at = self.step
            self._record(record)
            since, counted, waits = time.perf_counter(), self.step, 0.0
        self._summary(durations, saved_at)
        self._leave()

    def _beat(self) -> None:
        if time.monotonic() - self.last_heartbeat > _HEARTBEAT_SECONDS:
            self.last_heartbeat = time.monotonic()
            with suppress(OSError):  # a full disk does not end the run
                (self.run_dir / f"heartbeat-{self.rank}").write_text(f"{self.step} {time.time():.1f}\n")

    def _leave(self, error: str = "") -> NoReturn:
        """Exit with code 0 or, if there is an error, with code 1. Rank 0 prints the error.

        The ranks wait for each other before they exit, because a launcher ends the other ranks when one of them fails.
        """
        if error and self.rank == 0:
            sys.stderr.write(f"{error}\n")
        # os._exit skips Gloo's destructor, which can block forever (seen with torch 2.6), because it holds the
        # interpreter lock while it waits for its threads.
        self._meet()
        if self.dist.get_backend() == "nccl":
            self.dist.destroy_process_group()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1 if error else 0)

    def _record(self, record: dict[str, Any]) -> None:
        if self.rank == 0:
            with (self.run_dir / "metrics.jsonl").open("a") as file:
                file.write(json.dumps({**record, "time": time.time()}) + "\n")
        self.say(f"step {record['step']} of {record['last_step']} loss {record['loss']:.5f} {record['step_ms']:.0f} ms "
                 f"{record['tokens_per_s']:.0f} tokens/s {record['hardware_tflops']:.2f} TFLOPS/rank")  # fmt: skip

    def _summary(self, durations: list[float], saved_at: int) -> None:
        summary: dict[str, Any] = {"summary": True, "steps_done": self.step, "saved_at": saved_at, "ranks": self.ranks}
        summary["float8"] = self.options.float8
        if durations:
            summary |= {**gpt.step_times(durations), **self.metrics(statistics.median(durations))}
        self.say(json.dumps(summary))


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="train a GPT with DDP or FSDP2")
    parser.add_argument("--preset", choices=sorted(gpt.PRESETS), default="tiny")
    parser.add_argument("--parallel", choices=["ddp", "fsdp2"], default="ddp")
    parser.add_argument("--data", default="synthetic", help="`synthetic`, or a file of unsigned token ids")
    parser.add_argument("--token-bytes", type=int, choices=[2, 4], default=2, help="bytes per token id in the file")
    parser.add_argument("--batch", type=int, help="sequences per step, summed over all ranks; default: one per rank")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--save-every", type=int, default=50, help="steps between checkpoints; 0: no checkpoints")
    parser.add_argument("--log-every", type=int, default=1, help="steps between records; each record pauses the GPU")
    parser.add_argument("--keep", type=int, default=2, help="number of checkpoints to keep")
    parser.add_argument("--run-dir", default="run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--deterministic", action="store_true", help="reproducible losses, at lower speed")
    parser.add_argument("--compile", action="store_true", help="apply torch.compile to the blocks and the loss")
    parser.add_argument("--float8", action="store_true", help="float8 matrix products in the blocks; needs torchao")
    parser.add_argument("--recompute", action="store_true", help="recompute activations: less memory, more computation")

    chosen = parser.parse_args(arguments)
    counts = [chosen.steps, chosen.log_every] + ([] if chosen.batch is None else [chosen.batch])
    if min(counts) < 1 or chosen.save_every < 0 or chosen.keep <= 1:
        parser.error("--steps, --log-every and --batch must be at least 1, --keep at least 2")
    return chosen


if __name__ == "__main__":
    Trainer(parse()).run()
