"""The digits example, with real ranks: killed and resumed, its weights are those of an undisturbed run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_shim import FakeShim
from ranks import ROOT, Ranks

pytestmark = pytest.mark.torch

EXAMPLES = ROOT.parents[1] / "examples"
SCRIPT = EXAMPLES / "digits" / "train.py"
STEPS, EVERY, WORLD = 60, 20, 4


@pytest.fixture
def shims(short_path: Path) -> Iterator[Callable[[str], FakeShim]]:
    made: list[FakeShim] = []

    def make(name: str) -> FakeShim:
        folder = short_path / name
        folder.mkdir()
        made.append(FakeShim(folder, world=WORLD, every=EVERY))
        made[-1].start_generation(1)
        return made[-1]

    yield make
    for shim in made:
        shim.close()


def result(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    assert found["step"] == STEPS
    return found


def test_killed_and_resumed_is_bit_exact(shims: Callable[[str], FakeShim], tmp_path: Path) -> None:
    """P4 and the exactness that DESIGN promises for the same world size."""
    steps = ["--steps", str(STEPS)]

    whole = shims("whole")
    Ranks(whole, tmp_path / "w", SCRIPT, *steps, "--result", str(tmp_path / "whole.json")).wait()
    assert sorted(whole.committed) == [20, 40, 60]

    cut = shims("cut")
    # Slower, so that the kill falls between two checkpoints.
    first = Ranks(cut, tmp_path / "c1", SCRIPT, *steps, "--result", str(tmp_path / "no"))
    try:
        first.wait_for_step(2, EVERY + 3)
        first.kill(2)
        cut.start_generation(2)
    finally:
        first.kill_all()
    assert sorted(cut.committed) == [20]
    assert not (tmp_path / "no").exists()
    second = Ranks(cut, tmp_path / "c2", SCRIPT, *steps, "--result", str(tmp_path / "cut.json"))
    second.wait()
    for rank in range(WORLD):
        lines = second.log(rank).splitlines()
        assert any("resumes after step 20" in line for line in lines), second.report()
        assert [line for line in lines if " step 21 " in line]
        assert not [line for line in lines if " step 20 " in line]

    assert result(tmp_path / "cut.json") == result(tmp_path / "whole.json")
    assert result(tmp_path / "whole.json")["accuracy"] > 0.5


def test_plain_python_trains_and_leaves_nothing_else(tmp_path: Path) -> None:
    """The script without Troupe: plain Python trains, saves and leaves nothing else behind."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("TROUPE_")} | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(SCRIPT), "--steps", "25", "--result", str(tmp_path / "r.json")]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "final.pt")], env=env, check=True, capture_output=True, text=True
    )
    assert "rank 0: step 25 loss" in done.stdout
    assert json.loads((tmp_path / "r.json").read_text())["step"] == 25
    assert sorted(p.name for p in tmp_path.iterdir()) == ["final.pt", "r.json"]


@pytest.mark.parametrize("script", [SCRIPT, EXAMPLES / "hello-launch" / "train.py"])
def test_runs_under_torchrun(tmp_path: Path, script: Path) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("TROUPE_")} | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
            str(script),
            "--steps=5",
        ],
        env=env | {"OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "rank 0: step 5 loss" in done.stdout
    assert "rank 1: step 5 loss" in done.stdout
