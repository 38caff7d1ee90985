"""A run that is killed and resumed ends with the weights of a run that nobody disturbed, bit for bit.

Real DDP ranks; the undisturbed run is one process group from its first step to its last.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_shim import FakeShim
from ranks import LIMIT_S, ROOT, free_port

from troupe import page

pytestmark = pytest.mark.torch

EVERY = 5  # steps; odd and even ones, so that saves are synchronous and asynchronous in turn


class Forker:
    """A process that has imported torch, and forks ranks."""

    def __init__(self) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith("TROUPE_")}
        env |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TORCHELASTIC_USE_AGENT_STORE": "False"}
        script = Path(__file__).resolve().parent / "jobs" / "exact.py"
        self.process = subprocess.Popen(
            [sys.executable, str(script)], env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def start(self, shim: FakeShim, folder: Path, *words: str) -> list[int]:
        """Start all ranks of an attempt; return their process numbers."""
        folder.mkdir(parents=True)
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        self.logs = [folder / f"{r}.log" for r in range(shim.world)]
        ranks = [{"env": shim.environment(r) | where, "log": str(self.logs[r])} for r in range(shim.world)]
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"ranks": ranks, "words": words}) + "\n")
        self.process.stdin.flush()
        return self._line()

    def ended(self) -> list[int]:
        """Wait for the end of all ranks; return their exit codes."""
        return self._line()

    def report(self) -> str:
        return "\n".join(
            f"--- {p}:\n{p.read_text(errors='replace')[-1500:]}" for p in self.logs if p.exists()
        )

    def close(self) -> None:
        self.process.stdin and self.process.stdin.close()
        self.process.stdout and self.process.stdout.close()
        self.process.wait(30)

    def _line(self) -> list[int]:
        assert self.process.stdout is not None
        found: list[int] = json.loads(self.process.stdout.readline())
        return found


@pytest.fixture(scope="module")
def forker() -> Iterator[Forker]:
    made = Forker()
    yield made
    made.close()


@pytest.fixture
def shims(short_path: Path) -> Iterator[Any]:
    made: list[FakeShim] = []

    def make(name: str, world: int) -> FakeShim:
        folder = short_path / name
        folder.mkdir()
        made.append(FakeShim(folder, world=world, every=EVERY))
        made[-1].start_generation(1)
        return made[-1]

    yield make
    for shim in made:
        shim.close()


def wait_for_step(shim: FakeShim, forker: Forker, rank: int, step: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while (seen := shim.page_field(rank, page.STEP)) < step:
        assert time.monotonic() < deadline, f"still at step {seen}\n{forker.report()}"
        time.sleep(0.002)


def undisturbed(shims: Any, forker: Forker, tmp_path: Path, world: int, *words: str) -> dict[str, str]:
    shim = shims("whole", world)
    result = tmp_path / "whole.json"
    forker.start(shim, tmp_path / "whole", "--result", str(result), *words)
    assert forker.ended() == [0] * world, forker.report()
    found: dict[str, str] = json.loads(result.read_text())
    return found


def disturbed(
    shims: Any, forker: Forker, tmp_path: Path, kills: list[int], world: int, *words: str
) -> dict[str, str]:
    shim = shims("cut", world)
    result = tmp_path / "cut.json"
    for attempt, step in enumerate([*kills, 0]):
        pids = forker.start(
            shim, tmp_path / f"cut{attempt}", "--result", str(result), "--pause", "0.02", *words
        )
        if not step:
            break
        wait_for_step(shim, forker, attempt % world, step)
        os.kill(pids[attempt % world], signal.SIGKILL)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)  # none is reaped before all have ended
        codes = forker.ended()
        assert codes[attempt % world] == -signal.SIGKILL, forker.report()
        # A peer that misses the killed rank at once may end by its own error instead.
        assert set(codes) <= {-signal.SIGKILL, 1}, forker.report()
        assert not result.exists()
        assert shim.committed, "nothing to resume from"
        shim.start_generation(attempt + 2)
        assert shim.resume[1] > 0
    assert forker.ended() == [0] * world, forker.report()
    found: dict[str, str] = json.loads(result.read_text())
    return found


@pytest.mark.parametrize("world", [3, 4])
def test_killed_and_resumed_is_bit_exact(shims: Any, forker: Forker, tmp_path: Path, world: int) -> None:
    words = ("--steps", "18", "--width", "32")
    whole = undisturbed(shims, forker, tmp_path, world, *words)
    cut = disturbed(shims, forker, tmp_path, [8, 14], world, *words)
    assert len(whole) == 8
    assert {name for name in whole if whole[name] != cut[name]} == set()


@pytest.mark.soak
@pytest.mark.parametrize("world", [3, 4])
@pytest.mark.parametrize("seed", range(4))
def test_killed_at_many_moments(shims: Any, forker: Forker, tmp_path: Path, world: int, seed: int) -> None:
    import random

    draw = random.Random(seed)
    words = ("--steps", "60", "--width", "256")
    whole = undisturbed(shims, forker, tmp_path, world, *words)
    kills = sorted(draw.sample(range(EVERY + 2, 58), 4))
    cut = disturbed(shims, forker, tmp_path, kills, world, *words)
    assert {name for name in whole if whole[name] != cut[name]} == set(), f"killed at {kills}"


def test_the_comparison_can_fail(shims: Any, forker: Forker, tmp_path: Path) -> None:
    """Without prime() DDP sums in another order after a restart; the digests see it."""
    words = ("--steps", "18", "--width", "32", "--unprimed")
    whole = undisturbed(shims, forker, tmp_path, 4, *words)
    cut = disturbed(shims, forker, tmp_path, [8], 4, *words)
    assert {name for name in whole if whole[name] != cut[name]}
