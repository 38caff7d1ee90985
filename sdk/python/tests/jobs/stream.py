"""A rank that trains on nothing but notes what it was given; it kills itself where told.

Each rank appends one line of JSON for each step to --out/<rank>: generation, step, epoch
and the samples of its loader. The position is saved every third step.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

import troupe
import troupe.data
import troupe.torch

SIZE, BATCH = 51, 6  # three samples are left over in an epoch


class Numbers:
    """A dataset that gives the index of each sample."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, n: int) -> int:
        return n


def main() -> None:
    """Go through the epochs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--kill", type=int, nargs="*", default=[], help="step at which attempt 0, 1, … dies")
    args = parser.parse_args()
    me = troupe.init()
    sampler = troupe.data.Sampler(SIZE, BATCH, seed=3)
    loader: Any = DataLoader(
        Numbers(),  # type: ignore[arg-type]
        batch_sampler=sampler,  # type: ignore[arg-type]
        num_workers=2,
        prefetch_factor=4,
    )
    step = 0
    if (saved := troupe.resume_point()) is not None:
        position = troupe.torch.load(saved, rng=False)
        step = position.pop("step")
        sampler.load_state_dict(position)
    kill = args.kill[me.attempt] if me.attempt < len(args.kill) and me.rank == 1 else 0
    last: troupe.Checkpoint | None = None
    with (args.out / str(me.rank)).open("a") as notes:
        for epoch in range(sampler.epoch, args.epochs):
            for batch in sampler.consume(loader):
                step += 1
                row = {"generation": me.generation, "step": step, "epoch": epoch, "samples": batch.tolist()}
                notes.write(json.dumps(row) + "\n")
                notes.flush()
                troupe.step(step)
                if step == kill:
                    if last is not None:
                        last.wait()  # so that there is something to resume from
                    os.kill(os.getpid(), signal.SIGKILL)
                if step % 3 == 0:
                    with troupe.checkpoint(step, asynchronous=True) as last:
                        position = sampler.state_dict() | {"step": step}
                        troupe.torch.save(last, data=position, rng=False)


if __name__ == "__main__":
    main()
