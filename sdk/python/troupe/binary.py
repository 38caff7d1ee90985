"""Where the ``troupe`` binary is.

The binary belongs to this package: it is looked for where installers put it, never on
PATH, because a program of the same name from somewhere else would be started silently.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

from .errors import BinaryNotFound

VARIABLE = "TROUPE_BIN"
NAME = "troupe"


def candidates() -> list[str]:
    """Return every place a binary may be, in the order they are tried."""
    package = Path(__file__).resolve().parent
    places = [Path(sysconfig.get_path("scripts"))]
    if sys.base_prefix != sys.prefix:  # a virtual environment over an installation that has it
        base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
        places.append(Path(sysconfig.get_path("scripts", vars=base)))
    user = sysconfig.get_preferred_scheme("user")
    places.append(Path(sysconfig.get_path("scripts", user)))
    root = package.parents[2]
    if package.parent.parts[-2:] == ("sdk", "python") and (root / "go.mod").is_file():
        places.append(root / "bin")  # a checkout of the source, after `make build`
    else:
        places.append(package.parent / "bin")  # pip install --target
        if len(package.parents) > 3:
            places.append(package.parents[3] / "bin")  # --prefix: lib/python3.x/site-packages
    return list(dict.fromkeys(str(p / NAME) for p in places))


def find_binary() -> str:
    """Return the path of the binary.

    TROUPE_BIN alone decides when it is set.

    Raises:
        BinaryNotFound: no executable file is at any of the places; all are listed.
    """
    named = os.environ.get(VARIABLE)
    tried = [named] if named else candidates()
    for path in tried:
        if Path(path).is_file() and os.access(path, os.X_OK):
            return path
    if named:
        raise BinaryNotFound(
            f"{VARIABLE}={named} is not an executable file; correct it, or unset it to search", tried
        )
    listed = "".join(f"\n  {path}" for path in tried)
    raise BinaryNotFound(
        f"no {NAME} binary found; looked for:{listed}\n"
        f"Install it with the package (pip install troupe-runtime), run `make build` in a checkout, "
        f"or set {VARIABLE}.",
        tried,
    )
