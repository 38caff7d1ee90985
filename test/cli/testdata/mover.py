"""Counts steps and writes every one down; saves where the ranks agree to. Needs no torch."""

import json
import sys
import time
from pathlib import Path

import troupe

steps, folder = int(sys.argv[1]), sys.argv[2]
ctx = troupe.init()
saved = troupe.resume_point()
done = 0
if saved is not None:
    done = json.loads((saved / "rank-0" / "count.json").read_text())["step"]
log = Path(folder, f"rank-{ctx.rank}").open("a", buffering=1)  # noqa: SIM115 - ends with the process
for step in range(done + 1, steps + 1):
    time.sleep(0.01)
    log.write(f"{step} {ctx.world} {ctx.attempt}\n")
    troupe.step(step)
    if troupe.should_checkpoint(step):
        with troupe.checkpoint(step) as ck:
            (ck.path / "count.json").write_text(json.dumps({"step": step}))
    if troupe.should_stop():
        break
