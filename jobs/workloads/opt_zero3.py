"""Fine-tune an OPT with DeepSpeed's ZeRO-3: weights, gradients and optimizer are split over all ranks.

The weights of a checkpoint are split while they are read, so that no host needs the whole model; bf16 throughout.
Needs deepspeed, transformers and accelerate. Data is made up unless --data names a file of JSON lines with a `text`
each. Without --model the shape is made from numbers, with fresh weights, and nothing is downloaded. DeepSpeed's
launchers, torchrun and a scheduler can all start it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn


def deepspeed_config(options: argparse.Namespace) -> dict[str, Any]:
    """Return DeepSpeed's configuration."""
    return {
        "train_micro_batch_size_per_gpu": options.batch,
        "gradient_accumulation_steps": options.accumulate,
        "gradient_clipping": 1.0,
        "steps_per_print": 10,
        "bf16": {"enabled": True},
        # torch's own Adam: DeepSpeed's is compiled at the first start, which needs nvcc and ninja on every node.
        "optimizer": {"type": "AdamW", "params": {"lr": options.lr, "betas": [0.9, 0.95], "torch_adam": True}},
        "zero_optimization": {"stage": 3, "overlap_comm": True, "stage3_gather_16bit_weights_on_model_save": False},
    }


def load_model(transformers: Any, options: argparse.Namespace, config: dict[str, Any]) -> Any:
    """Return the model, split as it is made."""
    from transformers.integrations import HfDeepSpeedConfig  # noqa: PLC0415

    # As long as this lives, from_pretrained gives each rank its part only.
    options.keep = HfDeepSpeedConfig(config)
    if options.model:
        return transformers.AutoModelForCausalLM.from_pretrained(options.model)
    shape = transformers.OPTConfig(
        vocab_size=50272,
        hidden_size=options.hidden,
        word_embed_proj_dim=options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        ffn_dim=4 * options.hidden,
        max_position_embeddings=options.seq,
    )
    import deepspeed  # noqa: PLC0415

    with deepspeed.zero.Init(config_dict_or_path=config):
        return transformers.AutoModelForCausalLM.from_config(shape)


def batches(torch: Any, transformers: Any, options: argparse.Namespace, rank: int, ranks: int) -> Iterator[Any]:
    """Yield batches of token ids for this rank, without end."""
    if options.data is None:
        random = torch.Generator().manual_seed(rank)
        while True:
            yield torch.randint(50272, (options.batch, options.seq), generator=random)
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    texts = [json.loads(line)["text"] for line in Path(options.data).read_text().splitlines() if line][rank::ranks]
    while True:
        for start in range(0, len(texts) - options.batch + 1, options.batch):
            some = texts[start : start + options.batch]
            yield tokenizer(some, max_length=options.seq, padding="max_length", truncation=True, return_tensors="pt")[
                "input_ids"
            ]


def train(options: argparse.Namespace) -> NoReturn:
    """Run the steps; go on from the newest checkpoint of the folder, and leave one."""
    import deepspeed  # noqa: PLC0415  (seconds, which --help should not take)
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    deepspeed.init_distributed()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    config = deepspeed_config(options)
    model = load_model(transformers, options, config)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    folder = options.checkpoints
    if folder and (Path(folder) / "latest").exists():
        engine.load_checkpoint(folder)
    data = batches(torch, transformers, options, rank, ranks)
    while engine.global_steps < options.steps:
        begin = time.perf_counter()
        for _ in range(options.accumulate):
            tokens = next(data).to(engine.device)
            loss = engine(input_ids=tokens, labels=tokens).loss
            engine.backward(loss)
            engine.step()
        if rank == 0:
            seconds = time.perf_counter() - begin
            rate = options.batch * options.accumulate * options.seq * ranks / seconds
            print(f"step {engine.global_steps} loss {float(loss.detach()):.4f} {rate:.0f} tokens/s", flush=True)
        if folder and (engine.global_steps % options.save_every == 0 or engine.global_steps == options.steps):
            engine.save_checkpoint(folder)
    if rank == 0:
        print(json.dumps({"steps": engine.global_steps, "ranks": ranks}), flush=True)
    torch.distributed.barrier()
    # Gloo's threads may hold a rank back for ever once its work is done.
    sys.stdout.flush()
    os._exit(0)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description="fine-tune an OPT with ZeRO-3")
    parser.add_argument("--model", help="a checkpoint of transformers; without it the shape comes from the numbers")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--batch", type=int, default=16, help="sequences of each rank at once")
    parser.add_argument("--accumulate", type=int, default=8, help="batches in a step")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--data", help="JSON lines with a `text` each; needs --model, whose tokenizer it is")
    parser.add_argument("--checkpoints", help="folder of checkpoints")
    # DeepSpeed's launcher adds it; the environment says the same.
    parser.add_argument("--local_rank", "--local-rank", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.data and not chosen.model:
        parser.error("--data needs --model")
    return chosen


if __name__ == "__main__":
    train(parse())
