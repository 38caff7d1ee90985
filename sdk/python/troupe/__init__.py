"""Troupe in Python: the helper of one training rank, and the launcher.

What lives here: the public names a training script uses. What may not: torch (only
``troupe.torch`` imports it), any third-party package, and anything slow; this module
is imported once by every rank and must stay under 30 ms.

The helper does nothing outside Troupe, so that one script runs under Troupe, torchrun
and plain Python::

    import troupe

    ctx = troupe.init()
    start = load(troupe.resume_point())  # None: from scratch
    for step in range(start + 1, steps + 1):
        train(step)
        troupe.step(step, loss=loss)
        if troupe.should_checkpoint(step):
            with troupe.checkpoint(step) as ck:
                save(ck.path)
        if troupe.should_stop():
            break
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .checkpoint import Checkpoint, checkpoint
from .context import (
    Context,
    init,
    phase,
    report,
    resume_mesh,
    resume_point,
    seconds_left,
    should_checkpoint,
    should_stop,
    step,
)
from .errors import (
    BinaryNotFound,
    CheckpointDropped,
    CheckpointError,
    ConnectionLost,
    ProtocolError,
    StaleGeneration,
    TroupeError,
    VersionMismatch,
)

if TYPE_CHECKING:
    from types import ModuleType

__all__ = [
    "BinaryNotFound",
    "Checkpoint",
    "CheckpointDropped",
    "CheckpointError",
    "ConnectionLost",
    "Context",
    "ProtocolError",
    "StaleGeneration",
    "TroupeError",
    "VersionMismatch",
    "__version__",
    "checkpoint",
    "find_binary",
    "init",
    "phase",
    "report",
    "resume_mesh",
    "resume_point",
    "seconds_left",
    "should_checkpoint",
    "should_stop",
    "step",
]

__version__ = "0.1.0.dev0"


def find_binary() -> str:
    """Return the path of the ``troupe`` binary that belongs to this package.

    Raises:
        BinaryNotFound: no binary is where one may be; the message lists every place.
    """
    from .binary import find_binary as find

    return find()


def __getattr__(name: str) -> ModuleType:
    """Import ``troupe.torch`` and ``troupe.data`` on first use; torch comes with the first only."""
    if name in ("torch", "data"):
        import importlib

        return importlib.import_module(f"troupe.{name}")
    raise AttributeError(f"module 'troupe' has no attribute {name!r}")
