"""The package's logger, ``troupe``, imported when there is something to say.

``import logging`` is half of what ``import troupe`` would cost.
"""

from __future__ import annotations

from typing import Any


def debug(message: str, *args: Any) -> None:
    """Log what only somebody who looks for it wants to know."""
    _logger().debug(message, *args)


def warning(message: str, *args: Any) -> None:
    """Log what its user should know although the program goes on."""
    _logger().warning(message, *args)


def _logger() -> Any:
    import logging

    logger = logging.getLogger("troupe")
    if not logger.handlers:
        # A library stays silent until its user configures logging.
        logger.addHandler(logging.NullHandler())
    return logger
