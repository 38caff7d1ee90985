"""Saving one step so that it commits once, for all ranks, or not at all (P4).

The rank writes files below ``ck.path`` (its own directory) and ``ck.dcp_path`` (shared
by all ranks). Leaving the ``with`` names them to the shim, which makes them durable and
hashes them, and waits until the head has decided. What the files hold is not known here.
"""

from __future__ import annotations

import errno
import math
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import _log
from .context import session
from .errors import CheckpointDropped, CheckpointError, ProtocolError, TroupeError
from .protocol import field
from .session import MAX_METRICS

if TYPE_CHECKING:
    import io
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

    from .session import Session

PARTS = ("model", "optimizer", "scheduler", "rng", "data", "other")
MAX_CURSOR = 4 << 10  # as long as the shim takes
MAX_PATH = 1024  # of a file below a rank's directory, bytes

# Files of torch.distributed.checkpoint carry the rank that wrote them.
_DCP_FILE = r"__(\d+)_\d+\.distcp"
_DCP_METADATA = ".metadata"

# What a full or failing disk says: it costs a step, not the training.
_STORE_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE})
_NO_SPACE = 64 << 10  # bytes

_open: Checkpoint | None = None
_newest = -1  # the newest step that this process began


def checkpoint(
    step: int, *, strict: bool = False, asynchronous: bool = False, busy: str = "wait"
) -> Checkpoint:
    """Return a context manager that saves ``step``. Every rank enters it for the same step.

    An exception in the body gives the step up and goes on to the caller, but one that
    says that the store is full or failing (ENOSPC, EDQUOT, EIO, EROFS, ESTALE, or anything
    while its file system has no space) is taken for a dropped step. A step that is dropped
    for all ranks (another one gave it up) leaves ``ck.committed`` False and logs a warning:
    training goes on and the next step saves again. With ``strict`` it raises: the
    exception of the body itself, else CheckpointDropped.

    With ``asynchronous`` the ``with`` ends as soon as the state is copied, and the files
    are written while training goes on; see AsyncCheckpoint. While one such save of this
    rank is still being written, the next one waits for it (``busy="wait"``, at most as
    long as a save may take) or is given up for all ranks (``busy="skip"``).

    Outside Troupe the body writes into a temporary directory that is deleted.

    Raises:
        CheckpointError: on entry, the step cannot be begun, or is not newer than the last
            one; on exit, the files cannot be taken as they are (a link, a device), or
            cannot be made durable (a full disk) and the shim could not drop the step for
            the other ranks too. Nothing is committed.
        CheckpointDropped: with ``strict``, the step was given up.
        ConnectionLost: the shim left.
    """
    if asynchronous:
        from .asynchronous import AsyncCheckpoint

        return AsyncCheckpoint(step, strict=strict, busy=busy)
    return Checkpoint(step, strict=strict)


def store_failed(error: BaseException, folder: Path) -> bool:
    """Say whether the store, not the script, is to blame for an exception in the body."""
    if isinstance(error, OSError) and error.errno in _STORE_ERRORS:
        return True
    if not isinstance(error, Exception):
        return False
    # Libraries hide the errno (torch.save raises RuntimeError), so the file system is asked.
    try:
        space = os.statvfs(folder)
    except OSError as e:
        return e.errno in _STORE_ERRORS
    return space.f_bavail * space.f_frsize < _NO_SPACE


class Checkpoint:
    """One step being saved; made by checkpoint().

    Attributes:
        step: the step's number.
        path: directory of this rank's files; exists, and is empty.
        dcp_path: directory shared by all ranks, for torch.distributed.checkpoint.
        cursor: position in the data, any JSON value that does not depend on the number
            of ranks; at most 4 KiB as JSON.
        config: digest of the run's configuration.
        mesh: device mesh of the whole run, as ``{"dp": 2, "tp": 4}``, outermost first, or a
            torch ``DeviceMesh`` with names; the same on all ranks. See resume_mesh().
        committed: True after the ``with`` when the step is committed.
        reason: why it is not.
        asynchronous: True when the ``with`` ends before the step is decided.
        hash_seconds: what reading the durable files back and hashing them took; 0 when
            that is not known.
    """

    path: Path
    dcp_path: Path
    asynchronous = False

    def __init__(self, step: int, *, strict: bool = False) -> None:
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise TroupeError(f"step {step!r} is not a whole number ≥ 0")
        self.step = step
        self.cursor: Any = None
        self.config = ""
        self.mesh: Any = None
        self.committed = False
        self.reason = ""
        self.hash_seconds = 0.0
        self._strict = strict
        self._parts: dict[str, str] = {}
        self._frameworks: dict[str, str] = {}
        self._metrics: dict[str, float] = {}
        self._throwaway: Any = None
        self._session: Session = session()
        self._pid = os.getpid()

    def add(self, path: str | os.PathLike[str], part: str) -> None:
        """Name a file's part, or a file in ``dcp_path`` that the naming rule does not cover.

        Files below ``path`` are all taken; those called model, optimizer, scheduler, rng or
        data (with any extension) know their part. In ``dcp_path`` a rank takes
        ``__<rank>_*.distcp``, and rank 0 takes ``.metadata``.

        Raises:
            CheckpointError: the part is unknown, or the file is outside both directories.
        """
        _known(part)
        self._parts[self._relative(os.path.abspath(path))] = part  # noqa: PTH100 - keeps links as they are

    def metric(self, name: str, value: float) -> None:
        """Record a number with the step, such as a validation loss, for ``--keep-best``.

        It goes into the manifest, over the newest value that ``report()`` gave. Where ranks
        differ, the lowest rank's counts.

        Raises:
            CheckpointError: the name is not 1 to 63 letters, digits, ``.``, ``_``, ``-`` or
                ``/``, or the value is not a finite number.
        """
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError) as e:
            raise CheckpointError(f"metric {name!r} is {value!r}, not a number") from e
        if not _metric_name(name) or not math.isfinite(number):
            raise CheckpointError(f"metric {name!r} = {value!r}: a plain name and a finite number are wanted")
        self._metrics[name] = number

    def framework(self, name: str, version: str) -> None:
        """Record the version of a library that wrote the files, for the manifest."""
        self._frameworks[name] = version

    def open(self, name: str, part: str = "") -> io.RawIOBase | io.BufferedIOBase:
        """Open a new file of this rank for writing; an asynchronous save keeps it in memory.

        Args:
            name: of the file below ``path``, as ``"model.pt"``.
            part: what it holds, where its name does not tell; see add().

        Raises:
            CheckpointError: the name is no plain relative path, or the part is unknown.
            OSError: the file cannot be made; it exists already.
        """
        file_name(name, part)
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if part:
            self.add(target, part)
        return target.open("xb")

    def done(self) -> bool:
        """Say whether the step is decided: always, after the ``with``."""
        return self is not _open

    def wait(self, timeout: float | None = None) -> bool:
        """Return whether the step is committed; an asynchronous save waits for it."""
        del timeout
        return self.committed

    def __enter__(self) -> Checkpoint:
        self._take_turn()
        try:
            if self._session.managed:
                self._begin()
            else:
                self._begin_throwaway("not started by Troupe")
        except BaseException:
            self._give_turn()
            raise
        return self

    def _take_turn(self) -> None:
        global _open, _newest  # noqa: PLW0603 - one process saves one step at a time
        if _open is not None:
            raise CheckpointError(f"step {_open.step} is still being saved; leave its `with` first")
        if self._session.managed:
            if self.step <= _newest:
                # Its folder holds what was written the first time, which may be committed.
                raise CheckpointError(f"step {self.step} cannot be saved after step {_newest}")
            _newest = self.step
            earlier = sys.modules.get(f"{__package__}.asynchronous")
            if earlier is not None:
                earlier.collect()
        _open = self

    def _give_turn(self) -> None:
        global _open  # noqa: PLW0603
        if _open is self:
            _open = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._give_turn()
        if os.getpid() != self._pid:  # a child that was forked inside: the step is its parent's
            return False
        if self._throwaway is not None:
            self._throwaway.cleanup()
            if error is None:
                self._dropped(self.reason, quiet=not self._session.managed)
            return False
        if error is not None:
            self.reason = f"{type(error).__name__} while saving"
            store = store_failed(error, self.path)
            if (
                not self._abort(f"{type(error).__name__}: {error}" if store else "", store=store)
                or not store
                or self._strict
            ):
                return False
            self._dropped(f"{type(error).__name__}: {error}")
            return True
        try:
            request = self._request()
        except BaseException:
            self._abort()
            raise
        self._commit(request)
        return False

    def _begin(self) -> None:
        from pathlib import Path

        try:
            reply = self._session.call("begin", step=self.step, **self._patience())
        except CheckpointDropped as e:
            self._abort(str(e))
            # Every rank must run the same body, which may hold collectives.
            self._begin_throwaway(str(e))
            return
        own, shared = field(reply, "path", str), field(reply, "shared", str)
        if not own or not shared:
            self._abort()
            raise ProtocolError("the shim began a step without naming its directories", code="protocol")
        self.path, self.dcp_path = Path(own), Path(shared)

    def _patience(self) -> dict[str, Any]:
        """Return how long the beginning may wait for an earlier save that is still written."""
        return {}

    def _begin_throwaway(self, reason: str) -> None:
        import tempfile
        from pathlib import Path

        self.reason = reason
        self._throwaway = tempfile.TemporaryDirectory(prefix="troupe-", ignore_cleanup_errors=True)
        root = Path(self._throwaway.name)
        self.path = root / f"rank-{self._session.identity.rank}"
        self.dcp_path = root / "shared"
        self.path.mkdir()
        self.dcp_path.mkdir()
        if not self._session.managed:
            _log.warning("step %s is saved to a temporary directory and deleted: %s", self.step, reason)

    def _relative(self, path: str) -> str:
        """Return a path relative to the step's directory, as the manifest has it."""
        for base in (self.path, self.dcp_path):
            prefix = os.path.join(base, "")  # noqa: PTH118
            if path.startswith(prefix):
                return f"{base.name}/{path[len(prefix) :]}"
        raise CheckpointError(f"{path} is neither below {self.path} nor below {self.dcp_path}")

    def _request(self) -> dict[str, Any]:
        import re

        names = [self._relative(p) for p in _files(str(self.path))]
        rank = self._session.identity.rank
        for path in _files(str(self.dcp_path)):
            name = os.path.relpath(path, self.dcp_path)
            match = re.fullmatch(_DCP_FILE, os.path.basename(name))  # noqa: PTH119
            if (match and int(match[1]) == rank) or (rank == 0 and name == _DCP_METADATA):
                names.append(self._relative(path))
        missing = set(self._parts) - set(names)
        for name in sorted(missing):
            _regular(str(self.path.parent / name))
            names.append(name)
        request: dict[str, Any] = {
            "step": self.step,
            "files": [{"path": n, "part": self._parts.get(n) or _part(n)} for n in sorted(names)],
        }
        return request | self._about()

    def _about(self) -> dict[str, Any]:
        """Return what is told of the step besides its files."""
        import json

        request: dict[str, Any] = {}
        if self.cursor is not None:
            try:
                cursor = json.dumps(self.cursor, sort_keys=True, separators=(",", ":"), allow_nan=False)
            except (TypeError, ValueError, RecursionError) as e:
                raise CheckpointError(f"the data cursor is not JSON: {e}") from e
            if len(cursor) > MAX_CURSOR:
                raise CheckpointError(f"the data cursor has {len(cursor)} bytes, {MAX_CURSOR} are the most")
            request["cursor"] = cursor
        if self.config:
            request["config"] = self.config
        if self.mesh is not None:
            request["mesh"] = _mesh(self.mesh, self._session.identity.world)
        metrics = {n: v for n, v in self._session.reported.items() if _metric_name(n)} | self._metrics
        if metrics:
            request["metrics"] = dict(list(metrics.items())[-MAX_METRICS:])
        if self._frameworks:
            request["frameworks"] = json.dumps(self._frameworks, sort_keys=True, separators=(",", ":"))
        return request

    def _commit(self, request: dict[str, Any]) -> None:
        try:
            reply = self._session.call("prepare", **request)
            self.hash_seconds = field(reply, "hashNs", int) / 1e9
        except CheckpointDropped as e:
            self._dropped(str(e))
            return
        except CheckpointError as e:
            # A full or failing disk costs this step and not the training, if the other
            # ranks hear of it. If not, they would wait for the verdict for ever while
            # this one goes on: only its end frees them.
            if not self._abort():
                raise
            self._dropped(str(e))
            return
        except TroupeError:
            self._abort()
            raise
        try:
            reply = self._session.call("verdict", step=self.step)
        except CheckpointDropped as e:
            self._dropped(str(e))
            return
        self._verdict(reply)

    def _verdict(self, reply: Mapping[str, Any]) -> None:
        state = field(reply, "state", str)
        if state == "committed":
            self.committed = True
        elif state == "dropped":
            self._dropped(field(reply, "reason", str) or "no reason given")
        else:
            raise ProtocolError(f"the verdict on step {self.step} is {state!r}", code="protocol")

    def _dropped(self, reason: str, *, quiet: bool = False) -> None:
        self.reason = reason
        self._session.call_off()
        if quiet:
            return
        if self._strict:
            raise CheckpointDropped(f"step {self.step} was dropped: {reason}", code="dropped")
        _log.warning("step %s was not committed: %s", self.step, reason)

    def _abort(self, reason: str = "", *, store: bool = False) -> bool:
        """Give the step up; True when the shim says that it is dropped for all ranks.

        ``store`` says that the store is to blame, so that a rank which ends over it is not
        charged to its script.
        """
        why: dict[str, Any] = {"name": reason[:1024]} if reason else {}
        if store:
            why["store"] = True
        self._session.call_off()
        try:
            reply = self._session.call("abort", step=self.step, **why)
            return bool(field(reply, "state", str) == "dropped")
        except TroupeError as e:
            # The error that led here says more, and an unprepared step never commits.
            _log.debug("step %s could not be given up: %s", self.step, e)
            return False


def file_name(name: str, part: str) -> None:
    """Refuse what is no name of a file below a rank's directory, and an unknown part.

    Raises:
        CheckpointError: it is one of them.
    """
    strange = any(p in ("", ".", "..") for p in name.split("/")) or "\\" in name or not name.isprintable()
    if strange or len(name.encode(errors="replace")) > MAX_PATH:
        raise CheckpointError(f"{name!r} is not the name of a file below the rank's directory")
    if part:
        _known(part)


def _known(part: str) -> None:
    if part not in PARTS:
        raise CheckpointError(f"part {part!r} is none of {', '.join(PARTS)}")


def _mesh(mesh: Any, world: int) -> list[dict[str, Any]]:
    """Return a device mesh as it goes into the manifest."""
    names: Any
    if isinstance(mesh, Mapping):
        names, sizes = list(mesh), list(mesh.values())
    else:  # torch's own, which is not imported for this
        names, sizes = getattr(mesh, "mesh_dim_names", None), list(getattr(mesh, "shape", ()))
    whole = names and len(names) == len(sizes) and all(type(n) is int and n > 0 for n in sizes)
    if not whole or not all(isinstance(n, str) for n in names):
        raise CheckpointError(
            f"the device mesh is {mesh!r}: names and sizes are wanted, as {{'dp': 2, 'tp': 4}}"
        )
    if math.prod(sizes) != world:
        raise CheckpointError(
            f"the device mesh {mesh!r} holds {math.prod(sizes)} ranks, the world has {world}"
        )
    return [{"name": n, "size": s} for n, s in zip(names, sizes, strict=True)]


def _metric_name(name: str) -> bool:
    import re

    return isinstance(name, str) and bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}", name))


def _part(name: str) -> str:
    stem = name.rpartition("/")[2].partition(".")[0]
    return stem if stem in PARTS else "other"


def _files(root: str) -> list[str]:
    """Return every file below a directory; refuses what is not a plain file."""
    found: list[str] = []
    todo = [root]
    while todo:
        try:
            with os.scandir(todo.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        found.append(entry.path)
                    else:
                        raise _not_plain(entry.path)
        except OSError as e:
            raise CheckpointError(f"cannot list the checkpoint's files: {e}", code="io") from e
    return found


def _regular(path: str) -> None:
    import stat

    try:
        mode = os.lstat(path).st_mode
    except OSError as e:
        raise CheckpointError(f"a file that was added cannot be found: {e}", code="io") from e
    if not stat.S_ISREG(mode):
        raise _not_plain(path)


def _not_plain(path: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is not a plain file; a checkpoint holds no links, sockets or devices, because what "
        "they point to is not hashed. Copy the contents instead"
    )
