"""Four DDP ranks on the CPU that tell when they step, one of which dies twice.

Both sides of the benchmark start this very file: it knows nothing of who started it but
the variables that torchrun sets. Rank 1 sends itself SIGKILL at step 20 of attempts 0 and
1; attempt 2 runs to its end. Each rank appends its events to $EVENTS, one JSON object a
line: `up`, `first_step`, `kill`, `done`. Times are CLOCK_MONOTONIC, which all processes of
a machine share and no clock adjustment moves.
"""

from __future__ import annotations

import time

BEGIN = time.monotonic()  # before the imports, which are most of a cold start

import json  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

IMPORTED = time.monotonic()
STEPS = 40
STEP_TIME = 0.05  # seconds a step takes besides its arithmetic
KILL_RANK, KILL_STEP, KILL_ATTEMPTS = 1, 20, (0, 1)


def main() -> None:
    dist.init_process_group("gloo")
    joined = time.monotonic()
    rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])

    # One write of a whole line to a file in append mode: lines of ranks never mix.
    with Path(os.environ["EVENTS"]).open("ab", buffering=0) as events:

        def event(name: str, **more: float) -> None:
            line = {"t": time.monotonic(), "event": name, "rank": rank, "attempt": attempt, **more}
            events.write((json.dumps(line) + "\n").encode())

        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        event(
            "up",
            world=dist.get_world_size(),
            threads=torch.get_num_threads(),
            import_s=IMPORTED - BEGIN,
            join_s=joined - IMPORTED,
        )
        for step in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(32, 256)).square().mean().backward()
            optimizer.step()
            if step == 0:
                event("first_step")
            time.sleep(STEP_TIME)
            if rank == KILL_RANK and step == KILL_STEP and attempt in KILL_ATTEMPTS:
                event("kill")
                os.kill(os.getpid(), signal.SIGKILL)
        event("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
