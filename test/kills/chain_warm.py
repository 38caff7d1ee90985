"""chain.py as a script that speaks of torch: its ranks are forked from a warm forkserver."""

from __future__ import annotations

import sys

from chain import main

if __name__ == "__main__":
    sys.exit(main())
