"""Ranks that train several small networks with DDP, forked out of one process that has torch.

Reads orders on standard input, one line of JSON each: the ranks' environments, their log
files and the arguments. Answers with a line of process numbers when they are forked, and
with a line of exit codes when all have ended.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # the first optimizer would import it, in every rank
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import troupe
import troupe.torch

CLASSES = 7


class Task:
    """One network with its optimizer and its data."""

    def __init__(self, name: str, width: int) -> None:
        torch.manual_seed(len(name))
        self.name, self.width = name, width
        made, self.kind = NETS[name]
        self.net = DistributedDataParallel(made(width))
        if "adamw" in name:
            self.optimizer: Any = torch.optim.AdamW(self.net.parameters(), lr=0.01, weight_decay=0.02)
            self.scheduler: Any = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 50)
        else:
            self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9)
            self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 6, 0.5)

    def batch(self, step: int, rank: int) -> tuple[Any, Any]:
        """Return inputs and labels of a step."""
        g = torch.Generator().manual_seed(step * 1000 + rank)
        labels = torch.randint(0, CLASSES, (12,), generator=g)
        if self.kind == "words":
            return torch.randint(0, 50, (12, 5), generator=g), labels
        if self.kind == "images":
            return torch.randn(12, 3, 8, 8, generator=g), labels
        return torch.randn(12, 16, generator=g), labels

    def prime(self) -> None:
        """See troupe.torch.prime."""
        troupe.torch.prime(self.net, self.batch(0, 0)[0])

    def train(self, step: int, rank: int) -> None:
        """Make one step."""
        inputs, labels = self.batch(step, rank)
        self.optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(self.net(inputs), labels).backward()
        self.optimizer.step()
        self.scheduler.step()

    def state(self) -> dict[str, Any]:
        """Return everything that a resumed process needs."""
        return {
            "net": self.net.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.net.module.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])

    def digest(self) -> str:
        """Hash weights, buffers and the optimizer's moments."""
        sha = hashlib.sha256()
        moments = [
            v for s in self.optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)
        ]
        for tensor in [*self.net.module.state_dict().values(), *moments]:
            sha.update(tensor.detach().contiguous().numpy().tobytes())
        return sha.hexdigest()


class Words(nn.Module):
    """An embedding, most rows of which get no gradient in a step."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(50, width), nn.Linear(width, CLASSES)

    def forward(self, words: Any) -> Any:
        """Sum the words up."""
        return self.out(self.table(words).sum(1).tanh())


def mlp(width: int) -> nn.Module:
    """Three layers."""
    return nn.Sequential(
        nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLASSES)
    )


def conv(width: int) -> nn.Module:
    """Convolutions with batch norm, whose buffers are state too."""
    body = nn.Sequential(nn.Conv2d(3, width // 4, 3), nn.BatchNorm2d(width // 4), nn.ReLU())
    tail = nn.Sequential(nn.Conv2d(width // 4, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    return nn.Sequential(body, tail, nn.Flatten(), nn.Linear(8 * 16, CLASSES))


def dropout(width: int) -> nn.Module:
    """What it drops is drawn by each rank's own generator."""
    return nn.Sequential(
        nn.Linear(16, width), nn.Dropout(0.3), nn.Tanh(), nn.Linear(width, width), nn.Linear(width, CLASSES)
    )


NETS: dict[str, tuple[Callable[[int], nn.Module], str]] = {
    "mlp-sgd": (mlp, "rows"),
    "mlp-adamw": (mlp, "rows"),
    "conv-sgd": (conv, "images"),
    "conv-adamw": (conv, "images"),
    "dropout-sgd": (dropout, "rows"),
    "dropout-adamw": (dropout, "rows"),
    "words-sgd": (Words, "words"),
    "words-adamw": (Words, "words"),
}


def rank_main(words: list[str]) -> None:
    """Train all networks side by side."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--unprimed", action="store_true")
    args = parser.parse_args(words)
    torch.set_num_threads(1)
    me = troupe.init()
    dist.init_process_group("gloo")
    tasks = [Task(name, args.width) for name in NETS]
    torch.manual_seed(me.rank)
    if not args.unprimed:
        for task in tasks:
            task.prime()
    done = 0
    if (saved := troupe.resume_point()) is not None:
        for task in tasks:
            task.load(troupe.torch.read(saved / "rank-0" / f"{task.name}.pt"))
        done = troupe.torch.load(saved)["step"]
    last: Any = None
    for step in range(done + 1, args.steps + 1):
        for task in tasks:
            task.train(step, me.rank)
        troupe.step(step)
        time.sleep(args.pause)
        if troupe.should_checkpoint(step):
            with troupe.checkpoint(step, asynchronous=step % 2 == 0) as last:
                if me.rank == 0:
                    for task in tasks:
                        with last.open(f"{task.name}.pt", "model") as f:
                            troupe.torch.write(task.state(), f)
                troupe.torch.save(last, data={"step": step})
    if last is not None:
        last.wait()
    if me.rank == 0:
        args.result.write_text(json.dumps({task.name: task.digest() for task in tasks}))
    dist.barrier()


def fork(env: dict[str, str], log: str, words: list[str]) -> int:
    """Start one rank; return its process number."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.environ.update(env)
        rank_main(words)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def serve() -> None:
    """Carry out orders until standard input ends."""
    for line in sys.stdin:
        order = json.loads(line)
        pids = [fork(r["env"], r["log"], order["words"]) for r in order["ranks"]]
        sys.stdout.write(json.dumps(pids) + "\n")
        sys.stdout.flush()
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        sys.stdout.write(json.dumps(codes) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
