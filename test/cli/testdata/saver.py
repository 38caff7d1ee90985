"""Counts steps and saves the count; says where it began. Needs no torch."""

import json
import os
import sys
import time

import troupe

steps, fail_at = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
ctx = troupe.init()
saved = troupe.resume_point()
done = 0
if saved is not None:
    done = json.loads((saved / f"rank-{ctx.rank}" / "count.json").read_text())["step"]
    print(f"rank {ctx.rank}: saved on {troupe.resume_mesh()}", flush=True)
print(f"rank {ctx.rank} of {ctx.world}: attempt {ctx.attempt} begins after step {done}", flush=True)
for step in range(done + 1, steps + 1):
    troupe.step(step)
    if troupe.should_checkpoint(step) or (os.environ.get("EVERY") and step % int(os.environ["EVERY"]) == 0):
        with troupe.checkpoint(step) as ck:
            ck.mesh = {"dp": ctx.world, "tp": 1}
            (ck.path / "count.json").write_text(json.dumps({"step": step}))
    if step == fail_at and ctx.attempt == 0:
        raise SystemExit(9)
    time.sleep(0.01)
