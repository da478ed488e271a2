"""A GPT trainer: DDP or FSDP2, checkpoints that re-shard, one file, torch and the standard library only.

Each rank runs it with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT set (or Slurm's own). The batch of a
step depends on the seed and the step alone and is sliced by rank, so runs on any number of ranks see the same data and
a resumed run repeats an unbroken one. Metrics go to metrics.jsonl in the run directory, a JSON object a line.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

WARM_UP_STEPS = 10
"""Steps left out of the statistics: compilation, allocator and connection set-up."""


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


def latest_step(run_dir: Path) -> int | None:
    """Return the newest whole checkpoint's step. A half-written one was never named in `latest`."""
    try:
        step = int((run_dir / "latest").read_text())
    except (FileNotFoundError, ValueError):
        return None
    return step if step_dir(run_dir, step).is_dir() else None


def step_dir(run_dir: Path, step: int) -> Path:
    """Return the folder of a step's checkpoint."""
    return run_dir / f"step-{step:08d}"


def publish(run_dir: Path, step: int, keep: int) -> None:
    """Name a finished checkpoint in `latest`, atomically, and remove all but the newest `keep`."""
    fresh = run_dir / "latest.new"
    fresh.write_text(f"{step}\n")
    fresh.replace(run_dir / "latest")
    whole = sorted(path for path in run_dir.glob("step-????????") if int(path.name[5:]) <= step)
    for old in whole[:-keep]:
        shutil.rmtree(old, ignore_errors=True)


def rank_from_environment() -> tuple[int, int, int]:
    """Return (rank, world size, local rank) from torch's variables, else from Slurm's."""
    found = []
    for ours, slurms, alone in (
        ("RANK", "SLURM_PROCID", "0"), ("WORLD_SIZE", "SLURM_NTASKS", "1"), ("LOCAL_RANK", "SLURM_LOCALID", "0"),
    ):  # fmt: skip
        os.environ.setdefault(ours, os.environ.get(slurms, alone))
        found.append(int(os.environ[ours]))
    return found[0], found[1], found[2]


def build_model(torch: Any, shape: Shape) -> Any:
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

    class Gpt(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(shape.vocab, shape.hidden)
            self.positions = nn.Embedding(shape.seq, shape.hidden)
            self.blocks = nn.ModuleList(Block() for _ in range(shape.layers))
            self.norm = nn.LayerNorm(shape.hidden)
            self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)

        def forward(self, x: Any, y: Any) -> Any:
            place = torch.arange(x.shape[1], device=x.device)
            hidden = self.tokens(x) + self.positions(place)
            for block in self.blocks:
                hidden = block(hidden)
            logits = self.head(self.norm(hidden))
            return functional.cross_entropy(logits.view(-1, shape.vocab).float(), y.reshape(-1))

        def init_weights(self, seed: int) -> None:
            generator = torch.Generator(device=self.tokens.weight.device).manual_seed(seed)
            for name, parameter in self.named_parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=0.02, generator=generator)
                else:
                    nn.init.constant_(parameter, 1.0 if "norm" in name and name.endswith("weight") else 0.0)

    return Gpt()


class Data:
    """Batches by step: synthetic tokens, or windows of a memory-mapped file of unsigned 16-bit token ids."""

    def __init__(self, torch: Any, source: str, shape: Shape, seed: int) -> None:
        self.torch, self.shape, self.seed = torch, shape, seed
        self.tokens = None
        if source != "synthetic":
            count = os.path.getsize(source) // 2
            if count <= shape.seq + 1:
                raise SystemExit(f"train: {source} holds {count} tokens, a window needs {shape.seq + 1}")
            self.tokens = torch.from_file(source, shared=False, size=count, dtype=torch.int16)

    def batch(self, step: int, batch: int, first: int, last: int) -> Any:
        """Return rows first..last of the step's global batch, seq + 1 tokens each."""
        generator = self.torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        width = self.shape.seq + 1
        if self.tokens is None:
            # A sequence that counts on from a random start: there is something to learn, so the loss must fall.
            start = self.torch.randint(0, self.shape.vocab, (batch, 1), generator=generator)
            return ((start + self.torch.arange(width)) % self.shape.vocab)[first:last]
        starts = self.torch.randint(0, len(self.tokens) - width, (batch,), generator=generator)[first:last]
        windows = self.torch.stack([self.tokens[start : start + width] for start in starts.tolist()])
        return windows.long() & 0xFFFF


class Trainer:
    """One rank of a training run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.shape = PRESETS[options.preset]
        self.run_dir = Path(options.run_dir)
        self.rank, self.ranks, local = rank_from_environment()
        import torch  # noqa: PLC0415  (takes seconds; --help and the arithmetic need not wait)
        import torch.distributed as dist  # noqa: PLC0415

        self.torch, self.dist = torch, dist
        self.cuda = torch.cuda.is_available()
        if self.cuda:
            torch.cuda.set_device(local)
        self.device = torch.device("cuda", local) if self.cuda else torch.device("cpu")
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29500")
        dist.init_process_group("nccl" if self.cuda else "gloo", rank=self.rank, world_size=self.ranks)
        if options.batch % self.ranks:
            raise SystemExit(f"train: --batch {options.batch} must be a multiple of the world size {self.ranks}")
        self.rows = options.batch // self.ranks
        self.data = Data(torch, options.data, self.shape, options.seed)
        self.model = self._parallel(build_model(torch, self.shape).to(self.device))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=options.lr, fused=self.cuda)
        self.step = 0
        self.stopping = False
        for number in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, self._stop)

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def _parallel(self, model: Any) -> Any:
        model.init_weights(self.options.seed)
        if self.options.parallel == "ddp":
            if self.options.compile:
                model.compile()
            wrap = self.torch.nn.parallel.DistributedDataParallel
            return wrap(model, device_ids=[self.device.index] if self.cuda else None)
        from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: PLC0415

        mesh = init_device_mesh(self.device.type, (self.ranks,))
        kind = self.torch.bfloat16 if self.cuda else None
        policy = MixedPrecisionPolicy(param_dtype=kind, reduce_dtype=self.torch.float32)
        for block in model.blocks:
            if self.options.compile:
                block.compile()
            fully_shard(block, mesh=mesh, mp_policy=policy)
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

    def save(self) -> float:
        """Write a checkpoint and name it. Returns the seconds it took."""
        import torch.distributed.checkpoint as dcp  # noqa: PLC0415

        begin = time.perf_counter()
        folder = step_dir(self.run_dir, self.step)
        if self.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
        self.dist.barrier()
        dcp.save(self._state(), checkpoint_id=str(folder))
        self.dist.barrier()
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
        dcp.load(state, checkpoint_id=str(step_dir(self.run_dir, found[0])))
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.step = int(state["step"])
        self.say(f"resumed at step {self.step}")

    def advance(self) -> tuple[float, float]:
        """Do one step. Returns (global loss, seconds waited for data)."""
        begin = time.perf_counter()
        first = self.rank * self.rows
        tokens = self.data.batch(self.step, self.options.batch, first, first + self.rows).to(self.device)
        waited = time.perf_counter() - begin
        kind = self.torch.bfloat16
        mixed = self.cuda and self.options.parallel == "ddp"
        with self.torch.autocast(self.device.type, dtype=kind, enabled=mixed):
            loss = self.model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        total = loss.detach().float()
        self.dist.all_reduce(total)
        self.step += 1
        return float(total) / self.ranks, waited

    def metrics(self, seconds: float) -> dict[str, float | None]:
        """Return rates for a step that took `seconds`."""
        options = self.options
        tokens = options.batch * self.shape.seq
        model = model_flops(self.shape, options.batch) / seconds / self.ranks / 1e12
        peak = peak_tflops(self.torch.cuda.get_device_name()) if self.cuda else None
        return {
            "step_ms": seconds * 1e3,
            "samples_per_s": options.batch / seconds,
            "tokens_per_s": tokens / seconds,
            "tokens_per_s_per_rank": tokens / seconds / self.ranks,
            "model_tflops": model,
            "hardware_tflops": hardware_flops(self.shape, options.batch, False) / seconds / self.ranks / 1e12,
            "mfu": model / peak if peak else None,
            "peak_memory_gib": self.torch.cuda.max_memory_allocated() / 2**30 if self.cuda else None,
        }

    def run(self) -> NoReturn:
        """Train to the end, or to a signal: then a checkpoint is written and the exit code is 0 all the same."""
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self.resume()
        durations: list[float] = []
        saved_at, done = self.step, self.step
        while self.step < self.options.steps:
            begin = time.perf_counter()
            loss, waited = self.advance()
            seconds = time.perf_counter() - begin
            done += 1
            if done > WARM_UP_STEPS:
                durations.append(seconds)
            (self.run_dir / f"heartbeat-{self.rank}").write_text(f"{self.step} {time.time():.1f}\n")
            record: dict[str, Any] = {"step": self.step, "loss": loss, "data_wait_ms": waited * 1e3}
            record |= self.metrics(seconds)
            if self._agree_to_stop() or self.step % self.options.save_every == 0 or self.step == self.options.steps:
                record["checkpoint_s"] = self.save()
                saved_at = self.step
            self._record(record)
            if self.stopping:
                break
        self._summary(durations, saved_at)
        self._leave()

    def _leave(self) -> NoReturn:
        # Gloo's destructor joins its threads while it holds the interpreter's lock, which one of them may be waiting
        # for: a rank then hangs after its work is done (seen with torch 2.6). So a Gloo rank ends without it.
        self.dist.barrier()
        if self.dist.get_backend() == "nccl":
            self.dist.destroy_process_group()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def _agree_to_stop(self) -> bool:
        flag = self.torch.tensor([int(self.stopping)], device=self.device)
        self.dist.all_reduce(flag, op=self.dist.ReduceOp.MAX)
        self.stopping = bool(int(flag))
        return self.stopping

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
                "step_ms_p95": ordered[int(len(ordered) * 0.95)] * 1e3,
                "step_ms_max": ordered[-1] * 1e3,
                **self.metrics(statistics.median(ordered)),
            }
        self.say(json.dumps(summary))


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description="train a GPT with DDP or FSDP2")
    parser.add_argument("--preset", choices=sorted(PRESETS), default="tiny")
    parser.add_argument("--parallel", choices=["ddp", "fsdp2"], default="ddp")
    parser.add_argument("--data", default="synthetic", help="synthetic, or a file of unsigned 16-bit token ids")
    parser.add_argument("--batch", type=int, default=8, help="sequences in a step, over all ranks")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--keep", type=int, default=2, help="checkpoints to keep")
    parser.add_argument("--run-dir", default="run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--compile", action="store_true", help="torch.compile of the blocks")
    chosen = parser.parse_args(arguments)
    if min(chosen.steps, chosen.save_every, chosen.batch) < 1 or chosen.keep <= 1:
        parser.error("--steps, --save-every and --batch must be at least 1, --keep at least 2")
    return chosen


if __name__ == "__main__":
    Trainer(parse()).run()
