"""What a rank is connected to: a shim, or nothing.

Two classes with the same methods. Session answers for a process outside Troupe, and
for children of a rank: everything is a no-op. ShimSession talks to the shim. Which of
them is active is decided in context.py.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _env, _log, page, stacks
from .agreement import Agreement, listens
from .errors import ProtocolError, TroupeError, VersionMismatch
from .protocol import HELLO_TIMEOUT_S, VERSION, Client, field

if TYPE_CHECKING:
    from pathlib import Path

# Metrics of step() go out at most this often; between, they cost one comparison.
METRICS_EVERY_NS = 1_000_000_000
MAX_METRICS = 64  # as many as the shim keeps

_STEP, _TIME, _CALLS = page.STEP // 8, page.TIME // 8, page.CALLS // 8
_PHASE, _PROPOSAL = page.PHASE // 8, page.PROPOSAL // 8
_STOP, _STOP_BY = page.STOP // 8, page.STOPBY // 8


class Identity(NamedTuple):
    """Who this rank is, as its environment says."""

    rank: int
    world: int
    local_rank: int
    generation: int
    attempt: int
    run: str
    job: str


class Session:
    """No shim: a process under torchrun or plain Python, or a child of a rank."""

    managed = False
    every_steps = 0
    save_deadline = 0.0  # seconds

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.reported: dict[str, float] = {}  # what report() said last, for the next checkpoint

    def step(self, n: int, metrics: Mapping[str, Any]) -> None:
        """Publish the newest finished step."""

    def should_checkpoint(self, step: int) -> bool:
        """Say whether every rank saves after this step."""
        del step
        return False

    def should_stop(self) -> bool:
        """Say whether the shim asks for an orderly end."""
        return False

    def seconds_left(self) -> float | None:
        """Say how long until the shim kills this process; None: it does not want to."""
        return None

    def call_off(self) -> None:
        """Take back that every rank ends: the save that was to be the last is dropped."""

    def report(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Send metrics now and return what was sent."""
        del metrics
        return {}

    def resume(self) -> tuple[Path | None, int]:
        """Return the step's directory and number, or None and -1."""
        return None, -1

    def phase(self, name: str, timeout: float) -> None:
        """Announce a long phase; an empty name ends it."""

    def call(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send one request of a checkpoint; only a ShimSession is asked."""
        raise TroupeError(f"{op!r} needs a shim", code="usage")

    def call_file(self, op: str, **fields: Any) -> tuple[dict[str, Any], int]:
        """Send one request whose answer may bring a descriptor; only a ShimSession is asked."""
        raise TroupeError(f"{op!r} needs a shim", code="usage")

    def abandon(self) -> None:
        """Forget the parent's connection in a forked child."""


class ShimSession(Session):
    """One rank's connection to its shim."""

    managed = True

    def __init__(self, identity: Identity, path: str) -> None:
        """Connect, say hello and map the page.

        Raises:
            ConnectionLost: the shim is not there.
            VersionMismatch: no common protocol version.
            StaleGeneration: a newer attempt runs.
            ProtocolError: the shim's answer makes no sense.
            TroupeError: code ``page`` or ``environment``.
        """
        super().__init__(identity)
        self._client = Client(path)
        try:
            self._hello(path)
        except BaseException:
            self._client.close()
            raise
        self._metrics_due = 0
        # Left by the forkserver: tells what the script has imported, to be preloaded next time.
        self._imported: Callable[[], None] | None = vars(sys).pop("_troupe_imported", None)
        if self._imported is not None:
            self.step = self._first_step  # type: ignore[method-assign]  # later ones cost nothing
        self._resume: tuple[Path | None, int] | None = None

    def _hello(self, path: str) -> None:
        me = self.identity
        reply = self._client.call(
            "hello", timeout=HELLO_TIMEOUT_S, v=VERSION, rank=me.rank, gen=me.generation, pid=os.getpid()
        )
        version = field(reply, "v", int)
        if version < VERSION:  # a newer shim understands us; an older one may not
            raise VersionMismatch(
                f"the shim speaks protocol version {version}, this package {VERSION}; "
                "install the package that came with the cluster's binary",
                code="version",
                problem=reply,
            )
        world = field(reply, "world", int)
        if world not in (0, me.world):
            raise ProtocolError(
                f"the shim says {world} ranks, {_env.WORLD_SIZE} says {me.world}", code="protocol"
            )
        self.every_steps = field(reply, "everySteps", int)
        self.save_deadline = field(reply, "saveDeadlineMs", int) / 1000
        name = field(reply, "page", str)
        if not name:
            raise ProtocolError("the shim named no progress page", code="protocol")
        # Relative names are meant beside the socket.
        self._fields = page.open_page(os.path.join(os.path.dirname(path), name), me.generation)  # noqa: PTH118, PTH120
        file, signal = field(reply, "stacks", str), field(reply, "stackSignal", int)
        if file and signal > 0:
            stacks.register(file, signal)
        self._agreement = Agreement(self._fields, lambda: listens(path))

    def step(self, n: int, metrics: Mapping[str, Any]) -> None:
        now = time.monotonic_ns()  # CLOCK_MONOTONIC, which the shim reads too
        try:
            self._fields[_STEP] = n
        except (TypeError, ValueError) as e:
            raise TroupeError(f"step {n!r} is not a 64-bit whole number") from e
        self._fields[_TIME] = now
        if metrics and now >= self._metrics_due:
            self._metrics_due = now + METRICS_EVERY_NS
            try:
                self.report(metrics)
            except TroupeError as e:
                # A number nobody may ever look at must not end the training.
                _log.warning("metrics of step %s were not sent: %s", n, e)

    def _first_step(self, n: int, metrics: Mapping[str, Any]) -> None:
        # Before it is published: whoever sees the step finds the report.
        self._tell_imported()
        self.step(n, metrics)

    def _tell_imported(self) -> None:
        tell, self._imported = self._imported, None
        if tell is not None:
            del self.step
            tell()

    def should_checkpoint(self, step: int) -> bool:
        fields = self._fields
        if step > fields[_STEP]:
            self.step(step, {})  # a script that calls this alone publishes its steps so
        fields[_CALLS] += 1
        agreement = self._agreement
        if fields[_PROPOSAL] != agreement.settled and agreement.call(step):
            return True
        every = self.every_steps
        return every > 0 and step > 0 and step % every == 0

    def should_stop(self) -> bool:
        return self._agreement.ending or self._fields[_STOP] != 0

    def call_off(self) -> None:
        self._agreement.call_off()

    def seconds_left(self) -> float | None:
        by = self._fields[_STOP_BY]
        return max(0.0, (by - time.monotonic_ns()) / 1e9) if by else None

    def report(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        if len(metrics) > MAX_METRICS:
            raise TroupeError(f"{len(metrics)} metrics at once; {MAX_METRICS} are the most")
        sent: dict[str, float] = {}
        for name, value in metrics.items():
            try:
                if hasattr(value, "detach"):  # a tensor; torch warns when its graph is dropped unsaid
                    value = value.detach()  # noqa: PLW2901
                number = float(value)
            except (TypeError, ValueError, OverflowError) as e:
                raise TroupeError(f"metric {name!r} is {value!r}, not a number") from e
            if math.isfinite(number):  # JSON has no NaN and no infinity
                sent[name] = number
        self._client.call("report", metrics=sent)
        return sent

    def resume(self) -> tuple[Path | None, int]:
        if self._resume is None:
            from pathlib import Path

            reply = self._client.call("resume")
            step = field(reply, "step", int)
            name = field(reply, "path", str)
            if (step >= 0) != bool(name):
                raise ProtocolError(f"the shim says to resume step {step} from {name!r}", code="protocol")
            self._resume = (Path(name), step) if name else (None, -1)
        return self._resume

    def phase(self, name: str, timeout: float) -> None:
        self._client.call("phase", name=name, timeoutMs=math.ceil(timeout * 1000))
        self._fields[_PHASE] = time.monotonic_ns() + math.ceil(timeout * 1e9) if name else 0

    def call(self, op: str, **fields: Any) -> dict[str, Any]:
        self._tell_imported()  # a script that saves may publish no step
        return self._client.call(op, **fields)

    def call_file(self, op: str, **fields: Any) -> tuple[dict[str, Any], int]:
        return self._client.call_file(op, **fields)

    def abandon(self) -> None:
        self._client.close()
