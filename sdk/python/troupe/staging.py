"""The shared memory that a rank copies its state into for an asynchronous save.

What lives here: the mapping of the shim's buffer, and the files that are written into
it. What may not: anything about steps and verdicts; see asynchronous.py. The buffer is
mapped once and kept warm: a page that was touched before costs a copy and nothing more.
"""

from __future__ import annotations

import contextlib
import io
import os
from typing import TYPE_CHECKING, Any

from .errors import ProtocolError
from .protocol import field

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

    from .session import Session

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of Linux 5.14, which the mmap module does not name
_ALIGN = 64  # of each file, as torch aligns tensors within one
_LEAST = 1 << 20
_LARGE = 64 << 10  # below it the call costs more than the copy


class Buffer:
    """This process's mapping of its rank's buffer; one for each session.

    Attributes:
        size: bytes.
        used: bytes that files take up, from the start.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._memory: mmap.mmap | None = None
        self.view = memoryview(b"")
        self.name = ""
        self.size = 0
        self.used = 0

    def claim(self, size: int, timeout: float) -> None:
        """Wait until the saver has read the last save, and start anew with at least ``size`` bytes.

        Args:
            size: bytes.
            timeout: seconds; 0 waits as long as a save may take.

        Raises:
            CheckpointDropped: code ``busy``; the last save is still being written.
            CheckpointError: code ``memory``; the job has not so much.
        """
        self._ask(max(size, self.size, _LEAST), timeout)
        self.used = 0

    def grow(self, size: int) -> None:
        """Make room for at least ``size`` bytes and keep what is there."""
        old, self._memory = self.view[: self.used], None
        self._ask(max(size, self.size + self.size // 2), 0)
        self.view[: len(old)] = old

    def _ask(self, size: int, timeout: float) -> None:
        reply, fd = self._session.call_file(
            "buffer", size=size, buffer=self.name, timeoutMs=max(0, round(timeout * 1000))
        )
        try:
            name, got = field(reply, "buffer", str), field(reply, "size", int)
            if not name or got < size or (fd < 0 and name != self.name):
                raise ProtocolError(f"the shim gave {got} bytes of buffer for {size}", code="protocol")
            if fd >= 0:
                self._map(fd, got)
            self.name = name
        finally:
            if fd >= 0:
                os.close(fd)

    def _map(self, fd: int, size: int) -> None:
        import mmap

        memory = mmap.mmap(fd, size)
        with contextlib.suppress(OSError, ValueError):  # an older kernel: the first copy touches the pages
            memory.madvise(_POPULATE_WRITE)
        # The old mapping goes with its last view.
        self._memory, self.view, self.size = memory, memoryview(memory), size


class Sink(io.RawIOBase):
    """A file in the buffer, written from front to back; ``torch.save`` takes it.

    Attributes:
        offset: where it begins in the buffer, bytes.
        length: bytes written.
        copy: copies a large piece into its place in memory, where something is known that
            does it faster than Python and lets other threads run.
    """

    def __init__(self, buffer: Buffer, done: Callable[[Sink], None]) -> None:
        super().__init__()
        self._buffer = buffer
        self._done = done
        self.offset = -(-buffer.used // _ALIGN) * _ALIGN
        self.length = 0
        self.copy: Callable[[memoryview, memoryview], None] | None = None
        buffer.used = self.offset

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any) -> int:
        """Copy bytes to the end of the file; return how many."""
        if self.closed:
            raise ValueError("write to a closed file")
        source = memoryview(data)
        if source.format != "B" or source.ndim != 1:
            source = source.cast("B")
        start, buffer = self.offset + self.length, self._buffer
        end = start + len(source)
        if end > buffer.size:
            buffer.grow(end)
        if self.copy is not None and len(source) >= _LARGE:
            self.copy(buffer.view[start:end], source)
        else:
            buffer.view[start:end] = source
        self.length += len(source)
        buffer.used = end
        return len(source)

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self.length

    def close(self) -> None:
        """End the file: it belongs to the step from here on."""
        if not self.closed:
            super().close()
            self._done(self)


class Nowhere(io.RawIOBase):
    """Stands for a file of a step that is given up already, or of no step of Troupe's."""

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any) -> int:
        """Take the bytes and keep none."""
        return memoryview(data).nbytes
