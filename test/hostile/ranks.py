"""A rank whose state is a hash chain and which can go wrong in one way at one step.

The state after step n is sha256(state after n - 1, n, rank), so every step's right value
can be computed from nothing; a restore that is not exact ends with exit code 3. Lines on
stdout tell the tests what happened.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import signal
import sys
import time
from pathlib import Path

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


def say(text: str) -> None:
    """One line, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def save(step: int, state: bytes, rank: int, fault: str, size: int) -> None:
    """Save a step; ``fault`` goes wrong inside."""
    with troupe.checkpoint(step) as ck:
        (ck.path / "model.txt").write_text(f"{step} {state.hex()}")
        if size:
            (ck.path / "padding.bin").write_bytes(bytes(size))
        if fault == "raise":
            raise ValueError("in the middle of a save")
        if fault == "link":
            (ck.path / "link").symlink_to("/etc/hostname")
        if fault == "unlink":
            (ck.path / "model.txt").unlink()
            ck.path.rmdir()
        if fault == "exit":
            os._exit(0)
        if fault == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "cursor":
            ck.cursor = object()
    say(f"step {step} {'committed' if ck.committed else 'dropped: ' + ck.reason}")


def stage(step: int, state: bytes, rank: int, fault: str, size: int) -> troupe.Checkpoint:
    """Save a step asynchronously; ``fault`` goes wrong inside, or right after."""
    with troupe.checkpoint(step, asynchronous=True) as ck:
        text = bytearray(f"{step} {state.hex()}", "ascii")
        with ck.open("model.txt") as f:
            f.write(text)
        if size:
            with ck.open("padding.bin") as f:
                f.write(bytes(size))
        if fault == "raise":
            raise ValueError("in the middle of a save")
        if fault == "link":
            (ck.path / "link").symlink_to("/etc/hostname")
        if fault == "exit":
            os._exit(0)
        if fault == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "cursor":
            ck.cursor = object()
    text[:] = bytes(len(text))  # what training does with its tensors
    if fault == "die-after":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "exit-after":
        os._exit(0)
    return ck


def later(last: troupe.Checkpoint | None, now: troupe.Checkpoint | None) -> troupe.Checkpoint | None:
    """Say what became of the last step, now that another is staged."""
    if last is not None:
        say(f"step {last.step} {'committed' if last.wait() else 'dropped: ' + last.reason}")
    return now


def flags() -> argparse.Namespace:
    """Read the flags."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--step-time", type=float, default=0.0)
    parser.add_argument("--size", type=int, default=0)
    parser.add_argument("--fault", default="")
    parser.add_argument("--at", type=int, default=0)
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--hold", default="", help="after the last step, wait until this file is there")
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--asynchronous", action="store_true")
    parser.add_argument("--silent", action="store_true", help="never report a step")
    return parser.parse_args()


def main() -> int:
    """Walk the chain; 3 is a wrong restore."""
    args = flags()
    if args.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    me = troupe.init()
    state, done = b"", 0
    folder = troupe.resume_point()
    if folder is not None:
        saved, _, value = (folder / f"rank-{me.rank}" / "model.txt").read_text().partition(" ")
        done, state = int(saved), bytes.fromhex(value)
        if done != me.resume_step or state != chain(done, me.rank):
            say(f"WRONG RESTORE: step {done}, told {me.resume_step}")
            return 3
    say(f"attempt {me.attempt} resumes {done}")
    last: troupe.Checkpoint | None = None
    for step in range(done + 1, args.steps + 1):
        state = link(state, step, me.rank)
        time.sleep(args.step_time)
        if not args.silent:
            troupe.step(step)
        fault = args.fault if me.rank == args.rank and step == args.at and me.attempt == 0 else ""
        if fault == "skip":
            continue
        if fault == "leave":
            return 0
        if fault == "wait":  # long after the others have saved
            time.sleep(3)
        if troupe.should_checkpoint(step):
            try:
                with contextlib.suppress(ValueError):
                    if args.asynchronous:
                        last = later(last, stage(step, state, me.rank, fault, args.size))
                    else:
                        save(step, state, me.rank, fault, args.size)
            except troupe.CheckpointError as e:
                say(f"step {step} refused: {e}")
    later(last, None)
    say(f"done {args.steps}")
    while args.hold and not Path(args.hold).exists():
        time.sleep(0.01)
    return 0


if __name__ == "__main__":
    sys.exit(main())
