"""A GPT trainer: DDP or FSDP2, checkpoints that re-shard, one file, torch and the standard library only.

Each rank runs it with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT set (or Slurm's own). The batch of a
step depends on the seed and the step alone and is sliced by rank, so runs on any number of ranks see the same data and
a resumed run repeats an unbroken one. Metrics go to metrics.jsonl in the run directory, a JSON object a line; a rank
that is alive renews heartbeat-RANK there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import statistics
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

WARM_UP_STEPS = 10
"""Steps left out of the statistics: compilation, allocator and connection set-up."""
TIMEOUT = timedelta(minutes=5)
"""How long a collective may wait: this is when a frozen peer is noticed, and longer than any step."""
SAVE_TIMEOUT = timedelta(hours=1)
"""How long ranks wait for one another around a checkpoint: the 20b preset's is 240 GB, to whatever storage there is."""
_HEARTBEAT_SECONDS = 5.0


@dataclass(frozen=True)
class Shape:
    """A GPT: layers, hidden size, attention heads, vocabulary, sequence length; all but sizes as in the sources."""

    layers: int
    hidden: int
    heads: int
    vocab: int
    seq: int

    @property
    def parameters(self) -> int:
        """Parameters with tied embeddings: 12 h^2 + 13 h a layer, token and position embeddings, last norm."""
        layer = 12 * self.hidden**2 + 13 * self.hidden
        return self.layers * layer + (self.vocab + self.seq + 2) * self.hidden


PRESETS = {
    "tiny": Shape(2, 64, 4, 512, 64),
    "gpt2-124m": Shape(12, 768, 12, 50304, 1024),
    "opt-125m": Shape(12, 768, 12, 50272, 2048),
    "neox-2.7b": Shape(32, 2560, 32, 50432, 2048),
    "opt-6.7b": Shape(32, 4096, 32, 50272, 2048),
    "13b": Shape(44, 4096, 64, 50432, 2048),
    "20b": Shape(44, 6144, 64, 50432, 2048),
    "opt-175b": Shape(96, 12288, 96, 50272, 2048),
}
"""13b is what Lambda's scaling post calls so: the 20B shape with a hidden size of 4096."""

PEAK_TFLOPS = {
    "A100": 312, "H100 PCIe": 756, "H100 NVL": 835, "H100": 989, "H200": 989, "B200": 2250, "A6000": 154.85,
}  # fmt: skip
"""Dense bf16 per GPU, from the vendors' sheets as torchtitan lists them; the first name found in the device counts."""


def hardware_flops(shape: Shape, batch: int, recompute: bool) -> float:
    """Return FLOPs of one iteration over `batch` sequences as gpt-neox counts them (Narayanan et al. 2021, eq. 3)."""
    passes = 4 if recompute else 3
    h, s = shape.hidden, shape.seq
    return 24 * passes * batch * s * shape.layers * h**2 * (1 + s / (6 * h) + shape.vocab / (16 * shape.layers * h))


def model_flops(shape: Shape, batch: int) -> float:
    """Return FLOPs of one iteration without recomputation: 6N + 12 l h s a token (torchtitan's convention for MFU)."""
    per_token = 6 * shape.parameters + 12 * shape.layers * shape.hidden * shape.seq
    return per_token * batch * shape.seq


def peak_tflops(device: str) -> float | None:
    """Return the device's dense bf16 peak, or None when it is not in the table."""
    return next((peak for name, peak in PEAK_TFLOPS.items() if name in device), None)


def step_dir(run_dir: Path, step: int) -> Path:
    """Return the folder of a step's checkpoint."""
    return run_dir / f"step-{step:08d}"


def is_whole(folder: Path) -> bool:
    """Say whether all ranks have finished writing: DCP renames .metadata into place after the last of them."""
    return (folder / ".metadata").is_file()


def latest_step(run_dir: Path) -> int | None:
    """Return the newest whole checkpoint's step: what `latest` names, or None where it names none that is whole."""
    try:
        step = int((run_dir / "latest").read_text())
    except (FileNotFoundError, ValueError):
        return None
    return step if is_whole(step_dir(run_dir, step)) else None


def publish(run_dir: Path, step: int, keep: int) -> None:
    """Name a finished checkpoint in `latest`, atomically; of those before it, keep the newest `keep` - 1 whole ones."""
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


def percentile(ordered: list[float], share: float) -> float:
    """Return the smallest of the sorted values that at least `share` of them do not exceed (nearest rank)."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def rank_from_environment() -> tuple[int, int, int]:
    """Return (rank, world size, local rank) from torch's variables, else from Slurm's."""
    found = []
    for ours, slurms, alone in (
        ("RANK", "SLURM_PROCID", "0"), ("WORLD_SIZE", "SLURM_NTASKS", "1"), ("LOCAL_RANK", "SLURM_LOCALID", "0"),
    ):  # fmt: skip
        os.environ.setdefault(ours, os.environ.get(slurms, alone))
        found.append(int(os.environ[ours]))
    return found[0], found[1], found[2]


def build_model(torch: Any, shape: Shape, recompute: bool) -> Any:
    """Return the GPT. Its classes live in here, so that the arithmetic above can be used without torch."""
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            h = shape.hidden
            self.norm_1, self.norm_2 = nn.LayerNorm(h), nn.LayerNorm(h)
            self.qkv, self.out = nn.Linear(h, 3 * h), nn.Linear(h, h)
            self.up, self.down = nn.Linear(h, 4 * h), nn.Linear(4 * h, h)

        def forward(self, x: Any) -> Any:
            batch, seq, h = x.shape
            split = self.qkv(self.norm_1(x)).view(batch, seq, 3, shape.heads, h // shape.heads).permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(split[0], split[1], split[2], is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, seq, h))
            return x + self.down(functional.gelu(self.up(self.norm_2(x)), approximate="tanh"))

    class Head(nn.Module):  # type: ignore[misc, name-defined]
        """The last norm, the logits and their loss: one module, so that compilation never keeps the logits in fp32."""

        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(shape.hidden)
            self.logits = nn.Linear(shape.hidden, shape.vocab, bias=False)

        def forward(self, x: Any, y: Any) -> Any:
            return functional.cross_entropy(self.logits(self.norm(x)).flatten(0, 1).float(), y.flatten())

    class Gpt(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(shape.vocab, shape.hidden)
            self.positions = nn.Embedding(shape.seq, shape.hidden)
            self.blocks = nn.ModuleList(Block() for _ in range(shape.layers))
            self.head = Head()

        def forward(self, x: Any, y: Any) -> Any:
            hidden = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
            for block in self.blocks:
                if recompute:
                    hidden = torch.utils.checkpoint.checkpoint(block, hidden, use_reentrant=False)
                else:
                    hidden = block(hidden)
            return self.head(hidden, y)

        def init_weights(self, seed: int) -> None:
            generator = torch.Generator(device=self.tokens.weight.device).manual_seed(seed)
            for name, parameter in self.named_parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=0.02, generator=generator)
                else:
                    nn.init.constant_(parameter, 1.0 if "norm" in name and name.endswith("weight") else 0.0)

    return Gpt()


class Data:
    """Batches by step: synthetic tokens, or windows of a memory-mapped file of unsigned token ids."""

    def __init__(self, torch: Any, options: argparse.Namespace, shape: Shape) -> None:
        self.torch, self.shape, self.seed, self.source = torch, shape, options.seed, options.data
        self.tokens, self.mask = None, (1 << 8 * options.token_bytes) - 1
        if self.source == "synthetic":
            return
        if not os.path.isfile(self.source):
            raise SystemExit(f"train: --data {self.source} is no file. Fix: name a file of token ids, or 'synthetic'")
        count, rest = divmod(os.path.getsize(self.source), options.token_bytes)
        if rest or count < shape.seq + 1:
            raise SystemExit(
                f"train: {self.source} holds {count} tokens of {options.token_bytes} bytes and {rest} bytes more; "
                f"a window needs {shape.seq + 1} tokens. Fix: prepare more data, or correct --token-bytes"
            )
        self.tokens = torch.from_file(
            self.source, shared=False, size=count, dtype={2: torch.int16, 4: torch.int32}[options.token_bytes]
        )

    def batch(self, step: int, batch: int, first: int, last: int) -> Any:
        """Return rows first..last of the step's global batch, seq + 1 tokens each."""
        generator = self.torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        width = self.shape.seq + 1
        if self.tokens is None:
            # A sequence that counts on from a random start: there is something to learn, so the loss must fall.
            start = self.torch.randint(0, self.shape.vocab, (batch, 1), generator=generator)
            return ((start + self.torch.arange(width)) % self.shape.vocab)[first:last]
        starts = self.torch.randint(0, len(self.tokens) - width + 1, (batch,), generator=generator)[first:last]
        windows = self.torch.stack([self.tokens[start : start + width] for start in starts.tolist()]).long() & self.mask
        if (largest := int(windows.max())) >= self.shape.vocab:
            raise SystemExit(
                f"train: {self.source} holds token {largest}, and the preset's vocabulary has {self.shape.vocab}. "
                "Fix: tokenise with that vocabulary, choose another preset, or correct --token-bytes"
            )
        return windows


class Trainer:
    """One rank of a training run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.shape = PRESETS[options.preset]
        self.run_dir = Path(options.run_dir)
        self.rank, self.ranks, local = rank_from_environment()
        if options.batch % self.ranks:
            raise SystemExit(f"train: --batch {options.batch} must be a multiple of the world size {self.ranks}")
        import torch  # noqa: PLC0415  (takes seconds; --help and the arithmetic need not wait)
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
        with self.device:  # built where it will live: ranks that share a host would not all fit into its memory
            model = build_model(torch, self.shape, options.recompute)
        self.model = self._parallel(model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=options.lr, fused=self.cuda)
        self.step = 0
        self.asked_to_stop = False
        self.heard = 0.0
        for number in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, self._stop)

    def _stop(self, *_: object) -> None:
        self.asked_to_stop = True

    def _parallel(self, model: Any) -> Any:
        model.init_weights(self.options.seed)
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
            fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=not self.options.keep_unsharded)
        return fully_shard(model, mesh=mesh, mp_policy=policy)

    def say(self, text: str) -> None:
        """Print on rank 0."""
        if self.rank == 0:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()

    def _state(self) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_state_dict  # noqa: PLC0415

        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.torch.tensor(self.step)}

    def _meet(self) -> None:
        self.dist.barrier(group=self.savers, device_ids=[self.device.index] if self.cuda else None)

    def save(self) -> float:
        """Write a checkpoint and name it. Returns the seconds it took. Ends all ranks when it cannot be written."""
        import torch.distributed.checkpoint as dcp  # noqa: PLC0415

        begin = time.perf_counter()
        folder = step_dir(self.run_dir, self.step)
        if self.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
        self._meet()
        try:
            dcp.save(self._state(), checkpoint_id=str(folder), process_group=self.savers)
        except Exception as error:
            reasons = f"rank {self.rank}: {error}"
            if isinstance(error, dcp.CheckpointException):
                # Every rank comes here once all have reported, so nobody writes any more.
                if self.rank == 0:
                    shutil.rmtree(folder, ignore_errors=True)
                reasons = "; ".join(f"rank {rank}: {failure[0]}" for rank, failure in sorted(error.failures.items()))
            # torch on Python 3.13 may fail to report a failure, and what it says then has nothing to do with it.
            free = shutil.disk_usage(self.run_dir).free >> 20
            raise SystemExit(
                f"train: the checkpoint {folder} could not be written; {free} MiB are free there ({reasons}). "
                "Fix: make room there, or correct its permissions; the next start continues from the one before"
            ) from error
        self._meet()
        if self.rank == 0:
            publish(self.run_dir, self.step, self.options.keep)
        return time.perf_counter() - begin

    def resume(self) -> None:
        """Load the newest whole checkpoint, whatever layout wrote it. Rank 0 decides which: NFS caches may differ."""
        found = [latest_step(self.run_dir) if self.rank == 0 else None]
        self.dist.broadcast_object_list(found, src=0)
        if found[0] is None:
            return
        import torch.distributed.checkpoint as dcp  # noqa: PLC0415
        from torch.distributed.checkpoint.state_dict import set_state_dict  # noqa: PLC0415

        state = self._state()
        dcp.load(state, checkpoint_id=str(step_dir(self.run_dir, found[0])), process_group=self.savers)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.step = int(state["step"])
        self.say(f"resumed at step {self.step}")

    def advance(self) -> tuple[Any, float]:
        """Do one step. Returns (this rank's loss, still on the device; seconds waited for data)."""
        begin = time.perf_counter()
        first = self.rank * self.rows
        tokens = self.data.batch(self.step, self.options.batch, first, first + self.rows).to(self.device)
        waited = time.perf_counter() - begin
        mixed = self.cuda and self.options.parallel == "ddp"
        with self.torch.autocast(self.device.type, dtype=self.torch.bfloat16, enabled=mixed):
            loss = self.model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        return loss.detach().float(), waited

    def metrics(self, seconds: float) -> dict[str, float | None]:
        """Return rates for a step that took `seconds`."""
        options = self.options
        tokens = options.batch * self.shape.seq
        model = model_flops(self.shape, options.batch) / seconds / self.ranks / 1e12
        peak = peak_tflops(self.torch.cuda.get_device_name()) if self.cuda else None
        hardware = hardware_flops(self.shape, options.batch, options.recompute) / seconds / self.ranks / 1e12
        return {
            "step_ms": seconds * 1e3,
            "samples_per_s": options.batch / seconds,
            "tokens_per_s": tokens / seconds,
            "tokens_per_s_per_rank": tokens / seconds / self.ranks,
            "model_tflops": model,
            "hardware_tflops": hardware,
            "mfu": model / peak if peak else None,
            "peak_memory_gib": self.torch.cuda.max_memory_allocated() / 2**30 if self.cuda else None,
        }

    def run(self) -> NoReturn:
        """Train to the end, or to a signal: then a checkpoint is written and the exit code is 0 all the same."""
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self.resume()
        durations: list[float] = []
        done, saved_at, since, waits = 0, self.step, time.perf_counter(), 0.0
        counted, stopping = self.step, False
        while self.step < self.options.steps and not stopping:
            loss, waited = self.advance()
            done, waits = done + 1, waits + waited
            self._beat()
            last, saves = self.step == self.options.steps, self.options.save_every
            due = bool(saves) and self.step % saves == 0
            if not (last or due or self.step % self.options.log_every == 0):
                continue
            # The device is asked for its results, and the ranks for one another's, only here: both cost a pause.
            shared = self.torch.stack([loss, self.torch.tensor(float(self.asked_to_stop), device=self.device)])
            self.dist.all_reduce(shared)
            mean, stopping = float(shared[0]) / self.ranks, bool(shared[1])
            seconds = (time.perf_counter() - since) / (self.step - counted)
            # An interval counts when all of it came after the warm-up.
            if done - (self.step - counted) >= WARM_UP_STEPS:
                durations.append(seconds)
            data_ms = waits / (self.step - counted) * 1e3
            record = {"step": self.step, "loss": mean, "data_ms": data_ms, **self.metrics(seconds)}
            if saves and (last or due or stopping):
                record["checkpoint_s"] = self.save()
                saved_at = self.step
            self._record(record)
            since, counted, waits = time.perf_counter(), self.step, 0.0
        self._summary(durations, saved_at)
        self._leave()

    def _beat(self) -> None:
        if time.monotonic() - self.heard > _HEARTBEAT_SECONDS:
            self.heard = time.monotonic()
            with suppress(OSError):  # a full disk must not end a run that can go on
                (self.run_dir / f"heartbeat-{self.rank}").write_text(f"{self.step} {time.time():.1f}\n")

    def _leave(self) -> NoReturn:
        # Gloo's destructor joins its threads while it holds the interpreter's lock, which one of them may be waiting
        # for: a rank then hangs after its work is done (seen with torch 2.6). So a Gloo rank ends without it.
        self._meet()
        if self.dist.get_backend() == "nccl":
            self.dist.destroy_process_group()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def _record(self, record: dict[str, Any]) -> None:
        if self.rank == 0:
            with (self.run_dir / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(record) + "\n")
        self.say(f"step {record['step']} loss {record['loss']:.5f} {record['step_ms']:.0f} ms "
                 f"{record['tokens_per_s']:.0f} tokens/s {record['hardware_tflops']:.2f} TFLOPS/rank")  # fmt: skip

    def _summary(self, durations: list[float], saved_at: int) -> None:
        summary: dict[str, Any] = {"summary": True, "steps_done": self.step, "saved_at": saved_at, "ranks": self.ranks}
        if durations:
            ordered = sorted(durations)
            summary |= {
                "step_ms_p50": statistics.median(ordered) * 1e3,
                "step_ms_p95": percentile(ordered, 0.95) * 1e3,
                "step_ms_max": ordered[-1] * 1e3,
                **self.metrics(statistics.median(ordered)),
            }
        self.say(json.dumps(summary))


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description="train a GPT with DDP or FSDP2")
    parser.add_argument("--preset", choices=sorted(PRESETS), default="tiny")
    parser.add_argument("--parallel", choices=["ddp", "fsdp2"], default="ddp")
    parser.add_argument("--data", default="synthetic", help="synthetic, or a file of unsigned token ids")
    parser.add_argument("--token-bytes", type=int, choices=[2, 4], default=2, help="size of an id in that file")
    parser.add_argument("--batch", type=int, default=8, help="sequences in a step, over all ranks")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--save-every", type=int, default=50, help="steps between checkpoints; 0: none at all")
    parser.add_argument("--log-every", type=int, default=1, help="steps between two records; each costs a pause")
    parser.add_argument("--keep", type=int, default=2, help="checkpoints to keep")
    parser.add_argument("--run-dir", default="run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--deterministic", action="store_true", help="the same losses in every run, more slowly")
    parser.add_argument("--compile", action="store_true", help="torch.compile of the blocks and the loss")
    parser.add_argument("--recompute", action="store_true", help="keep no activations: less memory, more work")
    parser.add_argument("--keep-unsharded", action="store_true", help="FSDP2: hold gathered weights till the backward")
    chosen = parser.parse_args(arguments)
    if min(chosen.steps, chosen.log_every, chosen.batch) < 1 or chosen.save_every < 0 or chosen.keep <= 1:
        parser.error("--steps, --log-every and --batch must be at least 1, --keep at least 2")
    return chosen


if __name__ == "__main__":
    Trainer(parse()).run()
