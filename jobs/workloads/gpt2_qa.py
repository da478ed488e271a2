"""GPT-2 with a question-answering head on made-up data, under DDP or FSDP2: proves a cluster, teaches nobody anything.

The shape is GPT-2's (124M) with fresh weights; every step has a new random batch of its own, unlike the script this
stands for, which repeated one. Torch and the standard library only. Ranks find one another through RANK, WORLD_SIZE,
LOCAL_RANK, MASTER_ADDR and MASTER_PORT. The last line is a summary in JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from datetime import timedelta
from typing import Any, NoReturn

TIMEOUT = timedelta(minutes=5)
WARM_UP_STEPS = 3
VOCABULARY = 50257
SIZES = {"gpt2": (12, 768, 12), "tiny": (2, 64, 4)}
"""Layers, hidden size, heads."""


def choose_backend(wanted: str, dist: Any, *, cuda: bool) -> str:
    """Return the collectives' backend. Raises SystemExit where this build of torch does not have the wanted one."""
    if wanted == "auto":
        return "nccl" if cuda else "gloo"
    there = {
        "nccl": dist.is_nccl_available() and cuda,
        "gloo": dist.is_gloo_available(),
        "ucc": dist.is_ucc_available(),
    }
    if not there[wanted]:
        fixes = {
            "ucc": "torch from PyPI never has it, and PyPI's package `ucc` is another thing; use an image whose torch "
            "was built with USE_C10D_UCC, or --backend auto",
            "nccl": "it needs a GPU and torch built for CUDA; use --backend auto",
        }
        raise SystemExit(f"this torch has no backend {wanted}: {fixes[wanted]}")
    return wanted


def build(torch: Any, size: str, seq: int) -> Any:
    """Return the model: GPT-2's blocks, and two scores a token, for where an answer starts and where it ends."""
    layers, hidden, heads = SIZES[size]
    nn = torch.nn

    class QuestionAnswering(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(VOCABULARY, hidden)
            self.places = nn.Embedding(seq, hidden)
            self.blocks = nn.ModuleList(
                nn.TransformerEncoderLayer(hidden, heads, 4 * hidden, 0.0, "gelu", batch_first=True, norm_first=True)
                for _ in range(layers)
            )
            self.norm = nn.LayerNorm(hidden)
            self.spans = nn.Linear(hidden, 2)
            self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(seq), persistent=False)

        def forward(self, tokens: Any) -> Any:
            states = self.tokens(tokens) + self.places.weight
            for block in self.blocks:
                states = block(states, src_mask=self.mask, is_causal=True)
            return self.spans(self.norm(states))

    return QuestionAnswering()


def distribute(torch: Any, model: Any, parallel: str, device: Any, ranks: int) -> Any:
    """Return the model as every rank holds it."""
    model = model.to(device)
    if parallel == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415

    mesh = init_device_mesh(device.type, (ranks,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def train(options: argparse.Namespace) -> NoReturn:
    """Run the steps, print a line each, and end."""
    import torch  # noqa: PLC0415  (seconds, which --help should not take)
    import torch.distributed as dist  # noqa: PLC0415

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cuda = torch.cuda.is_available()
    backend = choose_backend(options.backend, dist, cuda=cuda)
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group(backend, timeout=TIMEOUT)
    torch.manual_seed(options.seed)
    model = distribute(torch, build(torch, options.size, options.seq), options.parallel, device, ranks)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
    random = torch.Generator().manual_seed(options.seed * 1000 + rank)
    seconds: list[float] = []
    loss = torch.zeros(1)
    for step in range(1, options.steps + 1):
        begin = time.perf_counter()
        tokens = torch.randint(VOCABULARY, (options.batch, options.seq), generator=random).to(device)
        spans = torch.randint(options.seq, (options.batch, 2), generator=random).to(device)
        # fp32 has a fifteenth of the arithmetic of bf16 on an H200 (67 and 989 TFLOPS).
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=cuda):
            loss = torch.nn.functional.cross_entropy(model(tokens), spans)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        value = float(loss.detach())
        seconds.append(time.perf_counter() - begin)
        if rank == 0:
            print(f"step {step} loss {value:.4f} {seconds[-1] * 1e3:.0f} ms", flush=True)
    if rank == 0:
        counted = sorted(seconds[WARM_UP_STEPS:] or seconds)
        middle = counted[len(counted) // 2]
        rate = options.batch * ranks / middle
        summary = {"backend": backend, "parallel": options.parallel, "ranks": ranks, "steps": options.steps}
        print(json.dumps({**summary, "step_ms_p50": middle * 1e3, "samples_per_s": rate}), flush=True)
    dist.barrier(device_ids=[device.index] if backend == "nccl" else None)
    if backend != "gloo":
        dist.destroy_process_group()
    sys.stdout.flush()
    # Gloo's threads may hold a rank back for ever once its work is done.
    os._exit(0)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description="fine-tune GPT-2 for question answering on made-up data")
    parser.add_argument("--size", choices=sorted(SIZES), default="gpt2")
    parser.add_argument("--parallel", choices=["ddp", "fsdp2"], default="ddp")
    parser.add_argument("--backend", choices=["auto", "nccl", "gloo", "ucc"], default="auto")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=8, help="sequences of each rank")
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    if min(chosen.steps, chosen.batch, chosen.seq) < 1:
        parser.error("--steps, --batch and --seq must be at least 1")
    return chosen


if __name__ == "__main__":
    train(parse())
