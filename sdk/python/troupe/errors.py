"""The exceptions of the package.

Every one is a TroupeError with a ``code`` for programs and a sentence for people. Codes
of the shim's replies (version, generation, usage, space, memory, io, busy, dropped, ended) are used
as they come; ``protocol``, ``gone``, ``environment`` and ``binary`` are the helper's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class TroupeError(Exception):
    """What went wrong, to what, and what to do about it.

    Attributes:
        code: one word for programs; stable.
        problem: the whole answer of the other side, where there was one.
    """

    def __init__(
        self, message: str, *, code: str = "usage", problem: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.problem = problem


class ProtocolError(TroupeError):
    """The shim sent something that is not a reply. The connection is closed."""


class ConnectionLost(TroupeError):
    """The shim is not there, or left while a call was waiting for it."""


class VersionMismatch(TroupeError):
    """Helper and shim speak no common version of the protocol."""


class StaleGeneration(TroupeError):
    """A process of an older attempt called; it may change nothing any more (P3)."""


class CheckpointError(TroupeError):
    """A checkpoint could not be begun or prepared; nothing of it is committed."""


class CheckpointDropped(CheckpointError):
    """The step was given up: by another rank, by a new attempt, or by the head."""


_BY_CODE: dict[str, type[TroupeError]] = {
    "version": VersionMismatch,
    "generation": StaleGeneration,
    "dropped": CheckpointDropped,
    "busy": CheckpointDropped,
    "space": CheckpointError,
    "memory": CheckpointError,
    "io": CheckpointError,
}


def from_reply(op: str, reply: Mapping[str, Any]) -> TroupeError:
    """Turn a refusal of the shim into the exception that a caller can tell apart."""
    code = reply.get("code")
    text = reply.get("error")
    if not isinstance(code, str) or not code:
        code = "protocol"
    if not isinstance(text, str) or not text:
        text = "no reason given"
    kind = _BY_CODE.get(code, TroupeError)
    return kind(f"shim refused {op!r}: {text}", code=code, problem=reply)


class BinaryNotFound(TroupeError):
    """The ``troupe`` binary is nowhere it may be.

    Attributes:
        tried: every path that was looked at, in order.
    """

    def __init__(self, message: str, tried: list[str]) -> None:
        super().__init__(message, code="binary")
        self.tried = tried
