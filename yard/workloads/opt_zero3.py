"""Fine-tunes an OPT model in bf16 with DeepSpeed's ZeRO-3, which shards weights, gradients and optimizer states.

Each rank loads only its shard of a checkpoint, so that no host needs memory for the whole model. The program needs
deepspeed, transformers and accelerate, and can be started by DeepSpeed's launchers, torchrun or a scheduler. Without
--data, the data is synthetic. Without --model, the weights are random, options define the model's shape, and nothing is
downloaded.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

VOCABULARY = 50272
IGNORED = -100
"""The label of positions that the loss ignores (transformers, OPTForCausalLM.forward, argument `labels`)."""


def deepspeed_config(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": options.batch,
        "gradient_accumulation_steps": options.accumulate,
        "gradient_clipping": 1.0,
        "steps_per_print": 10,
        "bf16": {"enabled": True},
        # DeepSpeed would compile its own Adam at the first start, which needs nvcc and ninja on every node.
        "optimizer": {"type": "AdamW", "params": {"lr": options.lr, "betas": [0.9, 0.95], "torch_adam": True}},
        "zero_optimization": {"stage": 3, "overlap_comm": True, "stage3_gather_16bit_weights_on_model_save": False},
    }


def load_model(transformers: Any, options: argparse.Namespace, config: dict[str, Any]) -> Any:
    """Return the model, which is sharded while it is constructed."""
    from transformers.integrations import HfDeepSpeedConfig  # noqa: PLC0415

    # While this object exists, from_pretrained loads only the rank's own shard.
    options.keep = HfDeepSpeedConfig(config)
    if options.model:
        return transformers.AutoModelForCausalLM.from_pretrained(options.model)
    import deepspeed  # noqa: PLC0415

    shape = transformers.OPTConfig(
        vocab_size=VOCABULARY,
        hidden_size=options.hidden,
        word_embed_proj_dim=options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        ffn_dim=4 * options.hidden,
        max_position_embeddings=options.seq,
    )
    with deepspeed.zero.Init(config_dict_or_path=config):
        return transformers.AutoModelForCausalLM.from_config(shape)


def sample_numbers(batch_number: int, rank: int, ranks: int, batch: int, count: int) -> list[int]:
    """Return the indices of the samples in a rank's batch. After the last sample, they start again with the first."""
    first = (batch_number * ranks + rank) * batch
    return [(first + index) % count for index in range(batch)]


def read_texts(path: Path) -> list[str]:
    """Return the field `text` of each JSON line in a file. Raises ValueError if there are no lines."""
    texts = [json.loads(line)["text"] for line in path.read_text().splitlines() if line.strip()]
    if not texts:
        raise ValueError(f"{path} contains no lines; it must contain JSON objects with a field `text`, one per line")
    return texts


class Batches:
    """A rank's training data. A batch maps each of the model's inputs to a tensor of shape (batch, seq)."""

    def __init__(self, torch: Any, transformers: Any, options: argparse.Namespace, rank: int, ranks: int) -> None:
        self._torch, self._options, self._rank, self._ranks = torch, options, rank, ranks
        self._texts: list[str] = []
        if options.data is not None:
            self._texts = read_texts(Path(options.data))
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)

    def batch(self, number: int) -> dict[str, Any]:
        """Return batch `number`, counted from 0 across all of the job's starts."""
        options = self._options
        if not self._texts:
            random = self._torch.Generator().manual_seed(number * self._ranks + self._rank)
            tokens = self._torch.randint(VOCABULARY, (options.batch, options.seq), generator=random)
            return {"input_ids": tokens, "labels": tokens}
        numbers = sample_numbers(number, self._rank, self._ranks, options.batch, len(self._texts))
        texts = [self._texts[index] for index in numbers]
        tokenized = self._tokenizer(
            texts, max_length=options.seq, padding="max_length", truncation=True, return_tensors="pt"
        )
        tokens, mask = tokenized["input_ids"], tokenized["attention_mask"]
        return {"input_ids": tokens, "attention_mask": mask, "labels": tokens.masked_fill(mask == 0, IGNORED)}


def train(options: argparse.Namespace) -> NoReturn:
    """Continue from the newest checkpoint, run the remaining steps, and end the process."""
    import deepspeed  # noqa: PLC0415  (takes seconds; --help does not need it)
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
    # os._exit skips Gloo's destructor, which can block forever.
    sys.stdout.flush()
    os._exit(0)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="fine-tune an OPT model with ZeRO-3")
    parser.add_argument("--model", help="checkpoint for transformers; default: --layers, --hidden and --heads")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--batch", type=int, default=16, help="sequences per rank and micro-batch")
    parser.add_argument("--accumulate", type=int, default=8, help="micro-batches per step")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--data", help="JSON lines with a field `text`; needs --model for the tokenizer")
    parser.add_argument("--checkpoints", help="folder of checkpoints")
    # DeepSpeed's launcher adds this option, with the same value as LOCAL_RANK.
    parser.add_argument("--local_rank", "--local-rank", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.data and not chosen.model:
        parser.error("--data needs --model")
    return chosen


if __name__ == "__main__":
    train(parse())
