"""``python -m troupe.launch``: torchrun's command line, run by Troupe.

This becomes ``troupe launch`` by exec: the same process id, so that a signal or a wait
for this process reaches the real launcher, and the binary reads the command line, which
is torchrun's to the letter. Ranks get this process's environment, which the binary hands
to the local agent by socket, and this process's interpreter.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from .binary import find_binary
from .errors import BinaryNotFound

EX_OSERR, EX_CONFIG = 71, 78


def main(words: Sequence[str] | None = None) -> int:
    """Become ``troupe launch``; returns an exit code only when that is impossible."""
    try:
        binary = find_binary()
        rest = sys.argv[1:] if words is None else words
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(binary, [binary, "launch", f"--python={sys.executable}", *rest])
    except BinaryNotFound as e:
        return _fail(e, EX_CONFIG)
    except OSError as e:
        return _fail(e, EX_OSERR)


def _fail(error: Exception, status: int) -> int:
    sys.stderr.write(f"error: {error}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
