"""Trains a small network on handwritten digits with DDP; the same under Troupe, torchrun and plain Python.

Under Troupe a killed rank costs the steps since the last checkpoint and nothing else: the
final weights are bit for bit those of a run that nobody disturbed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
import troupe
import troupe.data
import troupe.torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

SEED = 7
TEST_SAMPLES = 297  # of 1,797


class Data:
    """The digits: those to train on, by their number, and those to test with."""

    def __init__(self) -> None:
        x, y = load_digits(return_X_y=True)
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(SEED))
        inputs, labels = torch.tensor(x, dtype=torch.float32)[order] / 16, torch.tensor(y)[order]
        self.test = inputs[:TEST_SAMPLES], labels[:TEST_SAMPLES]
        self.inputs, self.labels = inputs[TEST_SAMPLES:], labels[TEST_SAMPLES:]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[number], self.labels[number]


def batches(data: Data, sampler: troupe.data.Sampler) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields this rank's share of one batch after another, for ever."""
    loader = DataLoader(data, batch_sampler=sampler)
    while True:
        yield from sampler.consume(loader)


def digest(model: nn.Module) -> str:
    """Returns the SHA-256 of all weights and buffers, in the order of their names."""
    sha = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        sha.update(name.encode() + b"\0" + value.detach().cpu().contiguous().numpy().tobytes())
    return sha.hexdigest()


def parse() -> argparse.Namespace:
    """Reads the flags."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=64, help="samples a step, over all ranks")
    parser.add_argument("--step-time", type=float, default=0.0, help="seconds to sleep after each step")
    parser.add_argument("--out", type=Path, help="where rank 0 saves the final weights")
    parser.add_argument("--result", type=Path, help="where rank 0 writes digest and accuracy, as JSON")
    return parser.parse_args()


def main() -> None:
    """Trains."""
    args = parse()
    torch.set_num_threads(1)  # the order of sums is part of exactness
    ctx = troupe.init()
    rank = ctx.rank

    torch.manual_seed(SEED)
    network = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 10))
    model: nn.Module = network
    if "MASTER_ADDR" in os.environ:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    data = Data()
    # A batch goes on with the next epoch where one ends, so that all have the same size.
    sampler = troupe.data.Sampler(len(data), args.batch, seed=SEED, last="wrap")

    # Before any state is loaded, in every run: see the README.
    troupe.torch.prime(model, torch.zeros(2, 64))

    done = 0
    if (saved := troupe.resume_point()) is not None:
        # With another number of ranks there are no generators that each could go on with.
        same = sum(1 for _ in saved.glob("rank-*")) == ctx.world
        position = troupe.torch.load(saved, model=model, optimizer=optimizer, rng=same)
        done = position["step"]
        sampler.load_state_dict(position["data"])
        print(f"rank {rank}: attempt {ctx.attempt} resumes after step {done}", flush=True)

    for step, (inputs, labels) in zip(range(done + 1, args.steps + 1), batches(data, sampler), strict=False):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(inputs), labels)
        loss.backward()
        optimizer.step()
        done = step
        if args.step_time:
            time.sleep(args.step_time)

        troupe.step(step, loss=loss)
        print(f"rank {rank}: step {step} loss {loss.item():.4f}", flush=True)
        if troupe.should_checkpoint(step):
            with troupe.checkpoint(step) as ck:
                position = {"step": step, "data": sampler.state_dict()}
                troupe.torch.save(ck, model=model, optimizer=optimizer, data=position)
            if rank == 0 and ck.committed:
                print(f"rank {rank}: step {step} is committed", flush=True)
        if troupe.should_stop():
            break

    if rank == 0 and done == args.steps:  # not when it was asked to end before
        finish(args, network, data, done)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def finish(args: argparse.Namespace, network: nn.Module, data: Data, step: int) -> None:
    """Measures the accuracy and writes what was asked for."""
    inputs, labels = data.test
    with torch.no_grad():
        accuracy = (network(inputs).argmax(dim=1) == labels).double().mean().item()
    result = {"step": step, "accuracy": accuracy, "weights_sha256": digest(network)}
    print(f"accuracy {accuracy:.4f}  weights {result['weights_sha256'][:16]}", flush=True)
    if args.out:
        torch.save(network.state_dict(), args.out)
    if args.result:
        # Whoever waits for the file never sees half of it.
        partial = args.result.with_name(args.result.name + ".partial")
        partial.write_text(json.dumps(result) + "\n")
        partial.replace(args.result)


if __name__ == "__main__":
    main()
