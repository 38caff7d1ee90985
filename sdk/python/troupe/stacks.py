"""Where a rank stands, told to the shim on a signal.

faulthandler writes the stacks of all Python threads from within the signal's handler, so
it answers for a rank that holds the GIL or waits in a library as well.
"""

from __future__ import annotations

import os

from . import _log


def register(path: str, number: int) -> bool:
    """Have signal ``number`` append the stacks of all threads to the file at ``path``.

    A handler that the script has for that signal stays. Returns whether the signal is
    answered; a rank that does not answer is looked at from outside.
    """
    import faulthandler
    import signal

    try:
        if signal.getsignal(number) is not signal.SIG_DFL:
            _log.debug("signal %s has a handler of the script's own: no stacks are told", number)
            return False
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        # It stays open for as long as the process lives: a handler cannot open it.
        file = os.open(path, flags, 0o600)
        faulthandler.register(number, file=file, all_threads=True, chain=False)
    except (OSError, ValueError, RuntimeError) as e:
        _log.debug("stacks cannot be told on signal %s: %s", number, e)
        return False
    return True
