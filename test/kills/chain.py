"""A rank whose state is a hash chain: any wrong restore breaks it, and it says so.

The state after step n is sha256(state after n - 1, n, rank), so every step's right value
can be computed from nothing. The rank saves the chain, and after a restore compares what
it loaded with what it computes. With ``--grandchild`` it leaves a process in a session of
its own behind, as careless launchers do.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import time

import troupe


def link(state: bytes, step: int, rank: int) -> bytes:
    """The next link of a rank's chain."""
    return hashlib.sha256(state + step.to_bytes(8, "big") + rank.to_bytes(8, "big")).digest()


def chain(step: int, rank: int) -> bytes:
    """The state of a rank after a step, from nothing."""
    state = b""
    for n in range(1, step + 1):
        state = link(state, n, rank)
    return state


def main() -> int:
    """Walk the chain; 3 is a wrong restore."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--step-time", type=float, default=0.02)
    parser.add_argument("--grandchild", action="store_true")
    args = parser.parse_args()
    me = troupe.init()
    if args.grandchild:
        subprocess.Popen(["sleep", "3600"], start_new_session=True, stdin=subprocess.DEVNULL)
    state, done = b"", 0
    folder = troupe.resume_point()
    if folder is not None:
        text = (folder / f"rank-{me.rank}" / "chain.txt").read_text()
        saved, _, value = text.partition(" ")
        done, state = int(saved), bytes.fromhex(value)
        if done != me.resume_step or state != chain(done, me.rank):
            sys.stderr.write(f"WRONG RESTORE: rank {me.rank} loaded step {done}, told {me.resume_step}\n")
            return 3
        sys.stdout.write(f"restored {done}\n")
    for step in range(done + 1, args.steps + 1):
        state = link(state, step, me.rank)
        time.sleep(args.step_time)
        troupe.step(step)
        if troupe.should_checkpoint(step):
            # One way and the other, and in turn, so that each meets what the last one left.
            with troupe.checkpoint(step, asynchronous=step % 3 != 0) as ck, ck.open("chain.txt") as f:
                f.write(f"{step} {state.hex()}".encode())
    sys.stdout.write(f"end {state.hex()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
