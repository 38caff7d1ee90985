"""A rank that has imported what train_ddp.py imports, and does nothing: its memory is weighed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

if __name__ == "__main__":
    assert torch.nn.parallel.DistributedDataParallel and dist.is_available()
    (Path(os.environ["EVENTS"]) / os.environ["RANK"]).touch()
    time.sleep(600)
