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


IGNORED = -100
"""Label of positions without a target. Source: transformers, OPTForCausalLM.forward, argument `labels`."""


def sample_numbers(batch_number: int, rank: int, ranks: int, batch: int, count: int) -> list[int]:
    """Return the numbers of the samples in one batch of one rank, out of `count` samples.

    The ranks read consecutive parts of the data. After the last sample, the first one follows. The result depends on
    `batch_number` alone, so a job that starts again goes on where its checkpoint ends.
    """
    first = (batch_number * ranks + rank) * batch
    return [(first + index) % count for index in range(batch)]


def read_texts(path: Path) -> list[str]:
    """Return the field `text` of each JSON line of a file. Raises ValueError if the file has none."""
    texts = [json.loads(line)["text"] for line in path.read_text().splitlines() if line.strip()]
    if not texts:
        raise ValueError(f"{path} contains no lines; each line must be a JSON object with a field `text`")
    return texts


class Batches:
    """The training data of one rank. A batch is a mapping of tensors of shape (batch, seq), as the model takes it."""

    def __init__(self, torch: Any, transformers: Any, options: argparse.Namespace, rank: int, ranks: int) -> None:
        self._torch, self._options, self._rank, self._ranks = torch, options, rank, ranks
        self._texts: list[str] = []
        if options.data is not None:
            self._texts = read_texts(Path(options.data))
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)

    def batch(self, number: int) -> dict[str, Any]:
        """Return batch `number`, counted from 0 over all starts of the job."""
        if not self._texts:
            return self._random(number)
        options = self._options
        numbers = sample_numbers(number, self._rank, self._ranks, options.batch, len(self._texts))
        texts = [self._texts[index] for index in numbers]
        made = self._tokenizer(
            texts, max_length=options.seq, padding="max_length", truncation=True, return_tensors="pt"
        )
        tokens, mask = made["input_ids"], made["attention_mask"]
        # Padding is neither read nor predicted.
        return {
            "input_ids": tokens,
            "attention_mask": mask,
            "labels": tokens.masked_fill(mask == 0, IGNORED),
        }

    def _random(self, number: int) -> dict[str, Any]:
        seed = number * self._ranks + self._rank
        random = self._torch.Generator().manual_seed(seed)
        tokens = self._torch.randint(50272, (self._options.batch, self._options.seq), generator=random)
        return {"input_ids": tokens, "labels": tokens}


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
    data = Batches(torch, transformers, options, rank, ranks)
    while engine.global_steps < options.steps:
        begin = time.perf_counter()
        first = engine.global_steps * options.accumulate
        for number in range(first, first + options.accumulate):
            batch = {name: value.to(engine.device) for name, value in data.batch(number).items()}
            loss = engine(**batch).loss
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
