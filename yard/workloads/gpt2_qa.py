"""Trains GPT-2 with a question-answering head on synthetic data, with DDP or FSDP2, to test a cluster.

The model has the shape of GPT-2 (124M) and random weights, and each step uses a new random batch. The program needs
only torch and the standard library. Each rank needs RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT in its
environment. The last printed line is a summary in JSON.
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
"""Mapping from size to the number of layers, the hidden size, and the number of heads."""


def choose_backend(wanted: str, dist: Any, *, cuda: bool) -> str:
    """Return the backend for collectives. Raises SystemExit if this build of torch does not support `wanted`."""
    if wanted == "auto":
        return "nccl" if cuda else "gloo"
    if wanted == "nccl" and not (cuda and dist.is_nccl_available()):
        raise SystemExit("this torch has no backend nccl: it needs a GPU and a torch for CUDA; use --backend auto")
    if wanted == "ucc" and not dist.is_ucc_available():
        raise SystemExit(
            "this torch has no backend ucc: PyPI's torch does not include it, and PyPI's package `ucc` is unrelated; "
            "use an image whose torch was built with USE_C10D_UCC, or --backend auto"
        )
    return wanted


def build(torch: Any, size: str, seq: int) -> Any:
    """Return GPT-2 with two scores per token, for the start and the end of an answer."""
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
    """Return the model with replicated weights (ddp) or sharded weights (fsdp2)."""
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
    """Run all steps, print a line for each step, and end the process."""
    import torch  # noqa: PLC0415  (takes seconds; --help does not need it)
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
        # An H200 reaches 989 TFLOPS in bf16 but only 67 in fp32.
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
    # os._exit skips Gloo's destructor, which can block forever.
    os._exit(0)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="fine-tune GPT-2 for question answering on synthetic data")
    parser.add_argument("--size", choices=sorted(SIZES), default="gpt2")
    parser.add_argument("--parallel", choices=["ddp", "fsdp2"], default="ddp")
    parser.add_argument("--backend", choices=["auto", "nccl", "gloo", "ucc"], default="auto")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=8, help="sequences per rank")
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    if min(chosen.steps, chosen.batch, chosen.seq) < 1:
        parser.error("--steps, --batch and --seq must be at least 1")
    return chosen


if __name__ == "__main__":
    train(parse())
