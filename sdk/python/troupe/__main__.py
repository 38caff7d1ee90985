"""``python -m troupe …``: become the ``troupe`` binary, with the same process id."""

from __future__ import annotations

import os
import sys

from .binary import find_binary
from .errors import BinaryNotFound

EX_CONFIG = 78


def main() -> int:
    """Replace this process by the binary; returns only when that is impossible."""
    try:
        path = find_binary()
        os.execv(path, [path, *sys.argv[1:]])
    except (BinaryNotFound, OSError) as e:
        sys.stderr.write(f"error: {e}\n")
    return EX_CONFIG


if __name__ == "__main__":
    sys.exit(main())
