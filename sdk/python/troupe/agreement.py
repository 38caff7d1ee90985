"""The rank's side of the agreement on a step; the twin of Rank in the Go package elastic/agree.

The leader proposes a step that all ranks save after. A rank that is not there yet binds
itself, in its page, to hold at that step until the verdict; who binds itself and who is
asked is written in the page by rank and shim, with no message between them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from . import page
from .errors import ConnectionLost

if TYPE_CHECKING:
    from collections.abc import Callable

_PROPOSAL, _TARGET = page.PROPOSAL // 8, page.TARGET // 8
_VERDICT, _AGREED = page.VERDICT // 8, page.AGREED // 8
_ACKNOWLEDGED, _SETTLED, _STOP = page.ACKNOWLEDGED // 8, page.SETTLED // 8, page.STOP // 8

DROPPED, SAVE, SAVE_AND_END = 0, 1, 2

# How long a holding rank sleeps between two looks at its page, and how often it makes sure
# that somebody is still there to write in it.
_FIRST_LOOK_S, _LONGEST_LOOK_S, _ALIVE_EVERY_S = 0.001, 0.02, 1.0


class Agreement:
    """What one rank has to do about the newest proposal.

    Attributes:
        settled: the newest proposal for which nothing is left to do; while the page shows
            this one, a call of should_checkpoint need not look further.
        ending: every rank ends after the step that it has just been told to save.
    """

    def __init__(self, fields: memoryview, alive: Callable[[], None]) -> None:
        """Take the page, and a function that raises when the shim is gone."""
        self._fields = fields
        self._alive = alive
        self._bound = 0
        self._target = 0
        self.settled = 0
        self.ending = False

    def call(self, step: int) -> bool:
        """Say whether all ranks save after ``step`` because they agreed to.

        Holds while the rank is bound to this step and the verdict is not there.

        Raises:
            ConnectionLost: the shim went away meanwhile.
        """
        if self._bound > self.settled:
            word = self._verdict(step)
            if word is None:
                return False
            self._settle(self._bound)
            if word != DROPPED:
                self.ending = word == SAVE_AND_END
                return True
        # The next proposal may stand there already.
        number, target = self._pair(_PROPOSAL, _TARGET)
        if number <= self.settled:
            return False
        if self._fields[_VERDICT] >= number or step >= target:
            self._settle(number)  # decided without this rank, or passed: the shim refuses
        else:
            self._target = target
            self._bound = number
            self._fields[_ACKNOWLEDGED] = number
        return False

    def call_off(self) -> None:
        """Go on after a step that was to be the last: its save was dropped for all ranks."""
        if self.ending:
            self.ending = False
            self._fields[_ACKNOWLEDGED] = 0

    def _verdict(self, step: int) -> int | None:
        """Return what was decided on the proposal that this rank is bound to; None: not yet."""
        pause = _FIRST_LOOK_S
        asked = time.monotonic()
        while True:
            number, word = self._pair(_VERDICT, _AGREED)
            if number > self._bound:
                return DROPPED  # no other is decided before an agreed one is behind all ranks
            if number == self._bound:
                return word if word == DROPPED or step >= self._target else None
            if step < self._target:
                return None
            if self._fields[_STOP]:
                return DROPPED  # the attempt is being ended: no step of it commits any more
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_LOOK_S)
            if time.monotonic() - asked >= _ALIVE_EVERY_S:
                asked = time.monotonic()
                self._alive()

    def _settle(self, number: int) -> None:
        self.settled = number
        self._fields[_SETTLED] = number

    def _pair(self, number: int, value: int) -> tuple[int, int]:
        """Read a value that belongs to a number; 0 and 0 while it is being written."""
        n, v = self._fields[number], self._fields[value]
        return (n, v) if self._fields[number] == n else (0, 0)


def listens(path: str) -> None:
    """Return when somebody listens on a Unix socket.

    Raises:
        ConnectionLost: nobody does.
    """
    import socket

    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
            s.settimeout(10.0)
            s.connect(path)
    except TimeoutError:
        pass  # busy, not gone
    except OSError as e:
        raise ConnectionLost(f"the shim at {path} is gone: {e}", code="gone") from e
