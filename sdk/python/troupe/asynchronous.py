"""Saving a step while training goes on: staged at once, committed or dropped later (P4).

The rank copies its state into shared memory of its shim and goes on; files, durability,
digests and the report are the saver's work, which is done even if the rank dies
meanwhile. What is staged is not committed: the verdict comes later, and nothing but a
committed step is ever restored.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from . import _log
from .checkpoint import Checkpoint, _part, file_name, store_failed
from .errors import CheckpointDropped, CheckpointError, TroupeError
from .protocol import field
from .staging import Buffer, Nowhere, Sink

if TYPE_CHECKING:
    import io
    from pathlib import Path
    from types import TracebackType

    from .session import Session

BUSY = ("wait", "skip")
# So many steps may wait for their verdict; the oldest one is forgotten then.
MAX_FLIGHT = 64
# What asking without waiting may take, seconds: the shim answers from memory.
_GLANCE_S = 0.001

_buffer: Buffer | None = None
_flight: list[AsyncCheckpoint] = []
_at_exit = False


def _buffer_of(session: Session) -> Buffer:
    global _buffer  # noqa: PLW0603 - one process is one rank
    if _buffer is None or _buffer._session is not session:
        _buffer = Buffer(session)
    return _buffer


class AsyncCheckpoint(Checkpoint):
    """One step that is saved while training goes on; made by ``checkpoint(asynchronous=True)``.

    The ``with`` ends when the state is copied; when Troupe has asked the rank to end, it
    waits for the verdict. From then on nothing that is done to a
    tensor changes what is saved. ``committed`` and ``reason`` tell the verdict once
    done() or wait() has learned it; entering a later checkpoint learns it too.
    """

    asynchronous = True

    def __init__(self, step: int, *, strict: bool, busy: str) -> None:
        super().__init__(step, strict=strict)
        if busy not in BUSY:
            raise CheckpointError(f"busy={busy!r} is none of {', '.join(BUSY)}")
        self._skip = busy == "skip"
        self._files: dict[str, dict[str, Any]] = {}
        self._sink: Sink | None = None
        self._claimed = False
        self._begun = False
        self._void = ""  # why the step is given up before its end
        self._decided = False

    def __getattr__(self, name: str) -> Path:
        # Folders are made when somebody wants to write there by himself, and only then:
        # a store that is slow or gone must not hold the ranks up.
        if name in ("path", "dcp_path") and not self._begun:
            self._begun = True
            if self._void:
                self._begin_throwaway(self._void)
            else:
                self._begin()
                if self._throwaway is not None:
                    self._void = self.reason
            found: Path = self.__dict__[name]
            return found
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def open(self, name: str, part: str = "") -> io.RawIOBase | io.BufferedIOBase:
        """Open a new file of this rank for writing, in memory; close it before the next one.

        Args:
            name: of the file below the rank's directory, as ``"model.pt"``.
            part: what it holds, where its name does not tell; see add().

        Raises:
            CheckpointError: the name is no plain relative path, was used before, or the
                last file is still open; code ``memory``: the job has none for it.
        """
        file_name(name, part)
        if self._sink is not None:
            raise CheckpointError("close the last file of the checkpoint before the next one is opened")
        if name in self._files:
            raise CheckpointError(f"file {name!r} was written already")
        if self._claim(0):
            self._sink = Sink(_buffer_of(self._session), lambda sink: self._closed(name, part, sink))
            return self._sink
        return Nowhere()

    def reserve(self, size: int) -> None:
        """Say how many bytes the files of this step will have, to be given them at once."""
        if self._claim(size):
            buffer = _buffer_of(self._session)
            if buffer.size < buffer.used + size:
                buffer.grow(buffer.used + size)

    def done(self) -> bool:
        """Say, without waiting, whether the step is decided: ``committed`` or ``reason`` tell how.

        Raises:
            CheckpointDropped: with ``strict``, the step was given up.
        """
        return self._ask(_GLANCE_S)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the step is decided; return whether it is committed.

        Args:
            timeout: seconds; None waits as long as it takes, which the save's deadline
                bounds.

        Raises:
            CheckpointDropped: with ``strict``, the step was given up.
            TroupeError: the attempt has ended, or the shim is gone.
        """
        self._ask(timeout)
        return self.committed

    def __enter__(self) -> AsyncCheckpoint:
        self._take_turn()
        if not self._session.managed:
            self._void = "not started by Troupe"
            _log.warning("step %s is not saved: %s", self.step, self._void)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._give_turn()
        if os.getpid() != self._pid:
            return False
        if self._sink is not None:
            self._sink.close()
        if self._throwaway is not None:
            self._void = self._void or self.reason
            self._throwaway.cleanup()
        if error is not None:
            return self._failed(error)
        if self._void:
            self._decided = True
            if self._session.managed:
                self._abort(self._void)
            self._dropped(self._void, quiet=not self._session.managed)
            return False
        try:
            self._session.call("stage", **self._request())
        except CheckpointDropped as e:
            self._decided = True
            self._abort(str(e))
            self._dropped(str(e))
        except BaseException:
            self._decided = True
            self._abort()
            raise
        else:
            _depart(self)
            if self._session.should_stop():
                # The last step of this process: whether it may end hangs on the verdict.
                self.wait()
        return False

    def _failed(self, error: BaseException) -> bool:
        """Give the step up after an exception in the body; True when the store is to blame."""
        self.reason, self._decided = f"{type(error).__name__} while saving", True
        if not self._session.managed:
            return False
        own = self._begun and self._throwaway is None  # it wrote to the store by itself
        store = own and store_failed(error, self.path)
        if not self._abort() or not store or self._strict:
            return False
        self._dropped(f"{type(error).__name__}: {error}")
        return True

    def _claim(self, size: int) -> bool:
        """Get the buffer for this step; False when the step is given up."""
        if self._void:
            return False
        if not self._claimed:
            try:
                _buffer_of(self._session).claim(size, _GLANCE_S if self._skip else 0)
            except CheckpointDropped as e:
                # Other ranks run the same body to its end, and so does this one.
                self._void = str(e)
                return False
            self._claimed = True
        return True

    def _patience(self) -> dict[str, Any]:
        return {"timeoutMs": 1} if self._skip else {}

    def _closed(self, name: str, part: str, sink: Sink) -> None:
        if self._sink is sink:
            self._sink = None
            place = {"staged": True, "offset": sink.offset, "length": sink.length}
            self._files[name] = {"part": part or _part(name), **place}

    def _request(self) -> dict[str, Any]:
        rank = f"rank-{self._session.identity.rank}"
        staged = {f"{rank}/{name}": about for name, about in self._files.items()}
        named = super()._request() if self._begun else {"step": self.step, "files": [], **self._about()}
        for file in named["files"]:
            if file["path"] in staged:
                raise CheckpointError(f"file {file['path']!r} was written twice, in memory and to the disk")
        named["files"] += [{"path": path, **about} for path, about in staged.items()]
        return named

    def _ask(self, timeout: float | None) -> bool:
        if self._decided:
            return True
        if self not in _flight:
            raise CheckpointError(f"step {self.step} is not staged yet: leave its `with` first")
        wait = {} if timeout is None else {"timeoutMs": max(1, round(timeout * 1000))}
        try:
            reply = self._session.call("verdict", step=self.step, **wait)
        except CheckpointDropped as e:
            reply = {"state": "dropped", "reason": str(e)}
        if field(reply, "state", str) == "pending":
            return False
        self._decided = True
        _flight.remove(self)
        self._verdict(reply)
        return True


def _depart(ck: AsyncCheckpoint) -> None:
    global _at_exit  # noqa: PLW0603
    _flight.append(ck)
    while len(_flight) > MAX_FLIGHT:
        old = _flight.pop(0)
        old._decided, old.reason = True, "nobody asked for its verdict in time"
    if not _at_exit:
        import atexit

        _at_exit = True
        atexit.register(_finish)


def collect() -> None:
    """Learn, without waiting, what became of the steps that were staged before."""
    for ck in list(_flight):
        try:
            if not ck._ask(_GLANCE_S):
                return  # later steps are decided later
        except CheckpointDropped as e:  # strict, and nobody has asked
            _log.warning("%s", e)


def forget() -> None:
    """Forget the parent's steps and memory in a forked child."""
    global _buffer  # noqa: PLW0603
    _buffer = None
    _flight.clear()


def _finish() -> None:
    """Wait at the end of the process: a rank that has ended can commit nothing more.

    After an exception it does not: the other ranks are to hear of that at once.
    """
    import sys

    if getattr(sys, "last_type", None) is not None:
        return
    for ck in list(_flight):
        if os.getpid() != ck._pid:
            return
        try:
            ck.wait(ck._session.save_deadline or None)
        except TroupeError as e:
            _log.warning("step %s was not committed: %s", ck.step, e)
