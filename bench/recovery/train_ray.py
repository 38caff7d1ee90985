"""The four ranks and two kills of train_ddp.py under Ray Train.

Started with the folder of the trial; writes the same events into events.jsonl there, and
the moment at which the trainer was asked to run, with Ray's cluster up, into begin. Ray
tells a rank no attempt number, so that one is kept in a file by the rank that dies.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import ray
import torch
import torch.distributed as dist
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

FOLDER = Path(sys.argv[1])


def loop(config: dict[str, str]) -> None:
    """One rank."""
    folder = Path(config["folder"])
    counter = folder / "attempt"
    attempt = int(counter.read_text()) if counter.exists() else 0
    rank = dist.get_rank()
    with (folder / "events.jsonl").open("ab", buffering=0) as events:

        def event(name: str, **more: float) -> None:
            line = {"t": time.monotonic(), "event": name, "rank": rank, "attempt": attempt, **more}
            events.write((json.dumps(line) + "\n").encode())

        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        event("up", world=dist.get_world_size(), threads=torch.get_num_threads(), import_s=0.0, join_s=0.0)
        for step in range(40):
            optimizer.zero_grad()
            model(torch.randn(32, 256)).square().mean().backward()
            optimizer.step()
            if step == 0:
                event("first_step")
            time.sleep(0.05)
            if rank == 1 and step == 20 and attempt < 2:
                counter.write_text(str(attempt + 1))
                event("kill")
                os.kill(os.getpid(), signal.SIGKILL)
        event("done")


def main() -> None:
    """A cluster of its own, and one run in it."""
    ray.init(address="local", num_cpus=8, include_dashboard=False, _temp_dir=str(FOLDER / "ray"))
    (FOLDER / "begin").write_text(repr(time.monotonic()))
    TorchTrainer(
        loop,
        train_loop_config={"folder": str(FOLDER)},
        scaling_config=ScalingConfig(num_workers=4),
        run_config=RunConfig(
            storage_path=str(FOLDER / "store"), failure_config=FailureConfig(max_failures=5)
        ),
    ).fit()


if __name__ == "__main__":
    main()
