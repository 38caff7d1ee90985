"""A rank that says once where it runs, and then waits: what bench/recovery takes nodes from."""

import json
import os
import sys
import time
from pathlib import Path

line = {
    "t": time.monotonic(),
    "rank": int(os.environ["RANK"]),
    "attempt": int(os.environ["TROUPE_ATTEMPT"]),
    "pid": os.getpid(),
}
with Path(sys.argv[1]).open("ab", buffering=0) as out:  # one write, so that lines do not mix
    out.write((json.dumps(line) + "\n").encode())
while True:
    time.sleep(3600)
