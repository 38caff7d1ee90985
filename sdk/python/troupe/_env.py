"""The environment variables a rank reads, by name, and nothing else."""

from __future__ import annotations

import os

from .errors import TroupeError

SOCKET = "TROUPE_SOCKET"
JOB = "TROUPE_JOB"
RUN = "TROUPE_RUN"
ATTEMPT = "TROUPE_ATTEMPT"
GENERATION = "TROUPE_GENERATION"
# Set by the first init() of a process, so that a child that was started with the
# same environment (a spawned data loader) does not pose as the rank.
HELPER_PID = "TROUPE_HELPER_PID"

RANK = "RANK"
WORLD_SIZE = "WORLD_SIZE"
LOCAL_RANK = "LOCAL_RANK"
RESTART_COUNT = "TORCHELASTIC_RESTART_COUNT"


def text(name: str, default: str = "") -> str:
    """Return a variable, or the default when it is not set."""
    return os.environ.get(name, default)


def number(name: str, default: int | None = None) -> int:
    """Return a variable as a whole number ≥ 0.

    Raises:
        TroupeError: code ``environment``; it is not a number, or not set and there is no default.
    """
    value = os.environ.get(name)
    if value is None:
        if default is None:
            raise TroupeError(
                f"{name} is not set although {SOCKET} is; start ranks with `troupe run` or "
                f"`python -m troupe.launch`, or unset {SOCKET}",
                code="environment",
            )
        return default
    if not value.isascii() or not value.isdigit():
        raise TroupeError(f"{name}={value!r} is not a whole number", code="environment")
    return int(value)
