"""Fixtures: a fake shim, and a package without a session from an earlier test."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_shim import FakeShim

from troupe import asynchronous, context

# The package's name `checkpoint` is the function.
checkpoint: Any = sys.modules["troupe.checkpoint"]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No session, and no variable that says this process is a rank."""
    for name in list(os.environ):
        if name.startswith(("TROUPE_", "PET_", "TORCHELASTIC_")) or name in (
            "RANK",
            "WORLD_SIZE",
            "LOCAL_RANK",
            "OMP_NUM_THREADS",
            "PYTHON_EXEC",
        ):
            monkeypatch.delenv(name)
    yield
    if context._active is not None:
        context._active.abandon()
    context._active = None
    context._phases.clear()
    checkpoint._open, checkpoint._newest = None, -1
    asynchronous.forget()
    os.environ.pop("TROUPE_HELPER_PID", None)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's name in 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="troupe-") as name:
        yield Path(name)


@pytest.fixture
def shim(short_path: Path) -> Iterator[FakeShim]:
    shim = FakeShim(short_path, world=1, every=10)
    shim.start_generation(1)
    yield shim
    shim.close()


@pytest.fixture
def as_rank(shim: FakeShim, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes this process a rank of the shim."""

    def become(rank: int = 0) -> None:
        for name, value in shim.environment(rank).items():
            monkeypatch.setenv(name, value)

    return become
