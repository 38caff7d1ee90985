"""The functions a training script calls, and the session they work on.

Here it is decided whether this process is a rank of Troupe: it is when TROUPE_SOCKET is
set and no parent of it has claimed the rank before.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _env, _log
from .errors import TroupeError
from .session import Identity, Session, ShimSession

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

# A day: a phase longer than that is a mistake in the unit.
MAX_PHASE_S = 86_400.0

_active: Session | None = None
_start_lock = threading.Lock()
_phases: list[tuple[str, float]] = []


class Context(NamedTuple):
    """Who this rank is.

    Attributes:
        rank: number of this rank, from 0 to world - 1.
        world: ranks of the job.
        local_rank: number of this rank on its node.
        generation: fencing number of the attempt, only growing (P3); 0 outside Troupe.
        attempt: starts of the job before this one; every rank sees the same (P9).
        run: name of the run, which owns the checkpoints; empty outside Troupe.
        job: id of the job; empty outside Troupe.
        managed: True under Troupe, False where every call is a no-op.
        every_steps: steps between checkpoints; 0: the script decides by itself.
    """

    rank: int
    world: int
    local_rank: int
    generation: int
    attempt: int
    run: str
    job: str
    managed: bool
    every_steps: int

    @property
    def resume_step(self) -> int:
        """The step to resume from, -1 from scratch. Waits as resume_point() does."""
        return session().resume()[1]


def init() -> Context:
    """Connect to the shim, once; later calls return the same answer.

    Without TROUPE_SOCKET (torchrun, plain Python) every function of the package is a
    no-op, and rank and world come from torchrun's variables or are 0 and 1.

    Raises:
        TroupeError: TROUPE_SOCKET is set, but the shim cannot be reached or refuses.
    """
    active = session()
    return Context(*active.identity, managed=active.managed, every_steps=active.every_steps)


def session() -> Session:
    """Return the active session; the first call makes it."""
    global _active  # noqa: PLW0603 - one process is one rank
    if _active is None:
        with _start_lock:
            if _active is None:
                _active = _start()
    return _active


def _start() -> Session:
    path = _env.text(_env.SOCKET)
    if not path:
        _log.debug("%s is not set: not started by Troupe, every helper call is a no-op", _env.SOCKET)
        return Session(_identity(managed=False))
    identity = _identity(managed=True)
    pid = str(os.getpid())
    if os.environ.setdefault(_env.HELPER_PID, pid) != pid:
        _log.debug("process %s is a child of the rank, every helper call is a no-op", pid)
        return Session(identity)
    return ShimSession(identity, path)


def _identity(*, managed: bool) -> Identity:
    # Under Troupe a missing rank is an error: guessing 0 would let two ranks be one.
    default = None if managed else 0
    return Identity(
        rank=_env.number(_env.RANK, default),
        world=_env.number(_env.WORLD_SIZE, None if managed else 1),
        local_rank=_env.number(_env.LOCAL_RANK, default),
        generation=_env.number(_env.GENERATION) if managed else 0,
        attempt=_env.number(_env.ATTEMPT if managed else _env.RESTART_COUNT, 0),
        run=_env.text(_env.RUN) if managed else "",
        job=_env.text(_env.JOB) if managed else "",
    )


def _after_fork() -> None:
    """Make every call a no-op in a forked child, such as a data loader's worker."""
    global _active, _start_lock  # noqa: PLW0603
    _start_lock = threading.Lock()  # the parent's may be held by a thread that is not here
    if _active is not None and _active.managed:
        _active.abandon()
        _active = Session(_active.identity)
    asynchronous = sys.modules.get(f"{__package__}.asynchronous")
    if asynchronous is not None:
        asynchronous.forget()
    _phases.clear()


os.register_at_fork(after_in_child=_after_fork)


def step(n: int, /, **metrics: Any) -> None:
    """Publish that step ``n`` is finished: one store into shared memory.

    Steps count from 1. Metrics are numbers (or one-element tensors); they are sent about
    once a second, the others are not even converted, so that a tensor on a GPU is not
    waited for. NaN and infinities are left out. Sending never raises.
    """
    (_active or session()).step(n, metrics)


def should_checkpoint(step: int) -> bool:
    """Say whether to save after ``step``. Call it once after every step, on every rank.

    "Every N steps" is a function of the step alone, so that all ranks agree without a
    word between them. When an interval by time (``10m``, ``auto``) is over, and before a node
    is drained, a job resized or stopped with a checkpoint, the ranks agree on a step while
    they train; a rank that comes to it before
    the last one has agreed waits here, for a fraction of a second as a rule. A call costs
    a microsecond or two otherwise. Always False outside Troupe.

    Raises:
        ConnectionLost: the shim went away while this rank waited.
    """
    return (_active or session()).should_checkpoint(step)


def should_stop() -> bool:
    """Say whether Troupe asks this rank to end in order (a drain, a resize or a stop).

    Call it after should_checkpoint() and the save: after an agreed last step it answers
    True on every rank at that same step, so that no rank waits for another in a collective.
    """
    return (_active or session()).should_stop()


def seconds_left() -> float | None:
    """Say how many seconds are left until this process is killed, once it is asked to stop.

    None while nobody asks, and always outside Troupe. A script that saves on the way out
    reads it to decide whether there is time.
    """
    return (_active or session()).seconds_left()


def resume_point() -> Path | None:
    """Return the directory of the committed step to load, or None to start from scratch.

    It is the step's directory: ``rank-0/``, ``rank-1/``, … as the ranks of the attempt
    that saved it wrote them, and ``shared/``. Every rank gets the same step (P4), and only
    after all files were verified: the call waits for that.
    """
    return session().resume()[0]


def resume_mesh() -> dict[str, int] | None:
    """Return the device mesh that the step to load was saved with, outermost first.

    It is what the ranks gave as ``ck.mesh``. None without a step to load, and where none
    was given. Waits as resume_point() does.

    Raises:
        TroupeError: the step's manifest cannot be read.
    """
    import json

    point = resume_point()
    if point is None:
        return None
    try:
        mesh = json.loads((point / "manifest.json").read_text()).get("mesh")
        return {d["name"]: int(d["size"]) for d in mesh} if mesh else None
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as e:
        raise TroupeError(f"the manifest of {point} cannot be read: {e}") from e


def report(**metrics: Any) -> None:
    """Send metrics now, in one round trip to the shim.

    The newest value of each goes into the manifests of later checkpoints, for
    ``--keep-best``; those of ``step()`` do not, since they are sent only now and then.

    Raises:
        TroupeError: a value is not a number, there are over 64, or the shim is gone.
    """
    active = session()
    active.reported.update(active.report(metrics))


class phase:  # noqa: N801 - reads as a function
    """``with phase(name, timeout=seconds):`` around work that publishes no step.

    Inside, a missing step is no stall until the timeout has passed. Phases nest; when
    the inner one ends, the outer one's timeout starts anew.
    """

    def __init__(self, name: str, timeout: float = 600.0) -> None:
        if not name:
            raise TroupeError("a phase needs a name")
        if not math.isfinite(timeout) or not 0 < timeout <= MAX_PHASE_S:
            raise TroupeError(f"phase {name!r}: timeout={timeout!r} is not between 0 and {MAX_PHASE_S} s")
        self._entry = (name, float(timeout))

    def __enter__(self) -> None:
        session().phase(*self._entry)
        _phases.append(self._entry)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if _phases:  # empty in a child that was forked inside
            _phases.pop()
        name, timeout = _phases[-1] if _phases else ("", 0.0)
        try:
            session().phase(name, timeout)
        except TroupeError as e:
            if error is None:
                raise
            _log.debug("phase %s could not be ended: %s", self._entry[0], e)
