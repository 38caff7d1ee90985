"""The progress page: 4,096 bytes of memory shared with the shim.

The twin of the Go package runtime/page, which fixes the layout; a test compares both.
A step report costs one store of its number and one of its time, no system call.
"""

from __future__ import annotations

import sys

from .errors import TroupeError

SIZE = 4096
VERSION = 1
MAGIC = b"TRPG"

# Byte offsets of version 1. Little-endian, each field 8 bytes and aligned.
HEADER = 0
GENERATION = 8
STEP = 16
TIME = 24
CALLS = 32
PHASE = 40
PROPOSAL = 64
TARGET = 72
VERDICT = 80
AGREED = 88
ACKNOWLEDGED = 96
STOP = 104
STOPBY = 112
SETTLED = 120


def open_page(path: str, generation: int) -> memoryview:
    """Map the page and return it as a row of signed 64-bit fields (index = offset / 8).

    An aligned 8-byte item of a memoryview is read and written by one load or store, so
    that the shim never sees half of a value.

    Raises:
        TroupeError: code ``page``; it cannot be mapped, or is not this generation's page.
    """
    import mmap

    if sys.byteorder != "little":
        raise TroupeError("the progress page needs a little-endian machine", code="page")
    try:
        with open(path, "r+b") as f:  # noqa: PTH123 - pathlib would double the import time
            memory = mmap.mmap(f.fileno(), SIZE)
    except (OSError, ValueError) as e:
        raise TroupeError(f"cannot map the progress page {path}: {e}", code="page") from e
    version = int.from_bytes(memory[4:8], "little")
    if memory[:4] != MAGIC or version != VERSION:
        raise TroupeError(f"{path} is not a progress page of version {VERSION}", code="page")
    fields = memoryview(memory).cast("q")
    found = fields[GENERATION // 8] & (1 << 64) - 1  # the restore epoch may set the sign bit
    if found != generation:
        raise TroupeError(
            f"{path} is the page of generation {found}, this process belongs to {generation}",
            code="page",
        )
    return fields
