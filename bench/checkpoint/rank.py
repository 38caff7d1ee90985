"""One rank of the checkpoint benchmark: saves the same state in turn by each way, and times it.

A step is what a step on a GPU is to the processor: mostly waiting for the device, and a
little work of its own. Each line of the output file is one measured value.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import troupe
import troupe.torch

TENSORS = 64
STEPS = 20  # after a save, as a stall is counted
CALLS = 1_000_000


class Log:
    """What this rank measured, one JSON object a line."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")

    def put(self, what: str, trial: int, **values: float) -> None:
        """Write one line at once: a rank that dies leaves what it had."""
        self._file.write(json.dumps({"what": what, "trial": trial, **values}) + "\n")
        self._file.flush()


class Rank:
    """The state of one rank and what is done to it."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.me = troupe.init()
        self.args = args
        count = args.bytes // 4 // TENSORS
        self.state = {f"layer.{n}.weight": torch.rand(count) for n in range(TENSORS)}
        self.warm = {name: torch.zeros_like(t) for name, t in self.state.items()}
        self.work = torch.rand(64, 64)
        self.step = 0
        self.log = Log(args.out / f"rank-{self.me.rank}.jsonl")

    def train(self) -> float:
        """Make one step; return its seconds."""
        began = time.perf_counter()
        self.step += 1
        self.work = torch.tanh(self.work @ self.work)
        time.sleep(self.args.step_time)
        troupe.step(self.step)
        return time.perf_counter() - began

    def copy(self) -> float:
        """Copy the state into buffers that were touched before; return the seconds."""
        began = time.perf_counter()
        for name, tensor in self.state.items():
            self.warm[name].copy_(tensor)
        return time.perf_counter() - began

    def later(self, trial: int, median: float) -> None:
        """Save asynchronously, and count what the save and the next steps cost."""
        dist.barrier()
        began = time.perf_counter()
        with troupe.checkpoint(self.step, asynchronous=True, strict=True) as ck:
            troupe.torch.save(ck, model=Holder(self.state), rng=False, replicated=False)
        call = time.perf_counter() - began
        steps = [self.train() for _ in range(STEPS)]
        ck.wait()
        whole = time.perf_counter() - began
        self.log.put(
            "async", trial, stall=call + sum(steps) - STEPS * median, call=call, until_committed=whole
        )

    def now(self, trial: int) -> None:
        """Save synchronously."""
        dist.barrier()
        began = time.perf_counter()
        with troupe.checkpoint(self.step, strict=True) as ck:
            troupe.torch.save(ck, model=Holder(self.state), rng=False, replicated=False)
        took = time.perf_counter() - began
        self.log.put("sync", trial, took=took, hash=ck.hash_seconds)

    def theirs(self, trial: int) -> None:
        """Save by torch.save, and make it durable."""
        path = self.args.store / f"theirs-{self.me.rank}.pt"
        dist.barrier()
        began = time.perf_counter()
        torch.save(self.state, path)
        for name in (path, path.parent):
            fd = os.open(name, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
        self.log.put("torch", trial, took=time.perf_counter() - began)
        path.unlink()

    def report(self) -> None:
        """Time a report of a step: a million, less the empty loop."""
        step, numbers = troupe.step, range(CALLS)
        began = time.perf_counter()
        for n in numbers:
            step(n)
        calls = time.perf_counter() - began
        began = time.perf_counter()
        for _ in numbers:
            pass
        empty = time.perf_counter() - began
        self.log.put("report", 0, microseconds=(calls - empty) / CALLS * 1e6)


class Holder:
    """A module as far as saving looks at it."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        """Return the tensors themselves, as a module does."""
        return self._state


def main() -> None:
    """Measure everything, in turn."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--trials", type=int, required=True)
    parser.add_argument("--step-time", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = Rank(args)
    rank.copy()
    median = statistics.median(rank.train() for _ in range(2 * STEPS))
    rank.later(-1, median)  # the first one makes the buffer
    for trial in range(args.trials):
        dist.barrier()
        rank.log.put("copy", trial, took=rank.copy())
        plain = [rank.train() for _ in range(STEPS)]
        rank.later(trial, statistics.median(plain))
    for trial in range(args.trials):
        rank.train()
        for way in (rank.now, rank.theirs) if trial % 2 == 0 else (rank.theirs, rank.now):
            way(trial)
    dist.barrier()
    if rank.me.rank == 0:  # the other one sleeps: it would take this one's processor
        rank.report()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
