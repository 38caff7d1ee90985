"""The way into an interpreter that is to become a forkserver.

The node starts the job's own command, ``python -u train.py …``, with this folder first in
PYTHONPATH, so that the ``site`` module imports this file before the script runs. Here the
process imports what the script will need and waits; each rank is a fork of it that
returns from this file, and the interpreter goes on to the script by itself. So whatever a
fresh interpreter does with its flags, ``__main__``, tracebacks and exit codes is not
imitated here: it is the interpreter's own doing.
"""

from __future__ import annotations

import os
import sys


def _enter() -> bool:
    """Become a forkserver or its probe; True in a rank when another sitecustomize was run."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    # From here on the interpreter looks as it does in a plain start.
    sys.path[:] = [p for p in sys.path if p != here]
    sys.path_importer_cache.pop(here, None)
    path = os.path.join(here, "forkserver.py")  # noqa: PTH118
    space: dict[str, object] = {"__name__": "troupe_forkserver", "__file__": path}
    with open(path, "rb") as f:  # noqa: PTH123
        code = compile(f.read(), path, "exec", dont_inherit=True)
    exec(code, space)  # noqa: S102 -- no module of ours may stay in sys.modules
    enter = space["enter"]
    return bool(enter(here))  # type: ignore[operator]


_found = _enter()
if not _found:
    # What `site` takes for "there is none", and what leaves no trace of this file.
    raise ImportError("no sitecustomize", name="sitecustomize")
