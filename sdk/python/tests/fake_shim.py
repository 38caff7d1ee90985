"""A shim for tests: the rank protocol of worker/shim on one Unix socket, and no more.

It keeps what the real one keeps apart: generations (an older one is refused), one reply
for each request in order, and a verdict for a step only when every rank has prepared or
one has given up. It starts no process and hashes nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
from pathlib import Path
from typing import Any

MAX_FRAME = 64 << 10


class HangUp(bytes):
    """Sent as it is, before the connection is closed."""


class FakeShim:
    def __init__(self, folder: Path, *, world: int = 1, every: int = 0) -> None:
        self.folder, self.world, self.every = folder, world, every
        self.socket_path = folder / "rank.sock"
        self.store = folder / "store"
        self.generation = 0
        self.resume: tuple[str, int] = ("", -1)
        self.requests: list[dict[str, Any]] = []
        self.committed: dict[int, Path] = {}
        # Replies that a test wants instead: operation → reply, bytes (sent as they are) or HangUp.
        self.override: dict[str, Any] = {}
        # No step from here on is committed in this generation: whoever saves it waits.
        self.hold_from: int | None = None
        self._changed = threading.Condition()
        self._prepared: dict[tuple[int, int], dict[int, dict[str, Any]]] = {}
        self._dropped: dict[tuple[int, int], str] = {}
        # By rank: shared memory, and the step that is being written out of it.
        self._buffers: dict[int, tuple[str, int, int]] = {}
        self._writing: dict[int, int] = {}
        self.slow = False  # what is staged is written only when release() is called
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.socket_path))
        self._listener.listen(64)
        self._spawn(self._accept)

    def start_generation(self, generation: int) -> None:
        """Fences the older ones, makes fresh pages and points resume at the newest commit."""
        with self._changed:
            self.generation = generation
            self.hold_from = None
            self._changed.notify_all()
        for rank in range(self.world):
            page = bytearray(4096)
            struct.pack_into("<4sIQqqQq", page, 0, b"TRPG", 1, generation, -1, 0, 0, 0)
            self.page_path(rank).write_bytes(page)
        if self.committed:
            step = max(self.committed)
            self.resume = (str(self.committed[step]), step)

    def page_path(self, rank: int) -> Path:
        return self.folder / f"page-{self.generation}-{rank}"

    def page_field(self, rank: int, offset: int) -> int:
        data = self.page_path(rank).read_bytes()
        return int(struct.unpack_from("<q", data, offset)[0])

    def set_page_field(self, rank: int, offset: int, value: int) -> None:
        with self.page_path(rank).open("r+b") as f:
            f.seek(offset)
            f.write(struct.pack("<q", value))

    def environment(self, rank: int) -> dict[str, str]:
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.world),
            "LOCAL_RANK": str(rank),
            "TROUPE_SOCKET": str(self.socket_path),
            "TROUPE_GENERATION": str(self.generation),
            "TROUPE_ATTEMPT": str(self.generation - 1),
            "TROUPE_RUN": "run",
            "TROUPE_JOB": "job-1",
        }

    def ops(self) -> list[str]:
        return [str(r.get("op")) for r in self.requests]

    def last(self, op: str) -> dict[str, Any]:
        return [r for r in self.requests if r.get("op") == op][-1]

    def drop(self, step: int, reason: str) -> None:
        with self._changed:
            self._dropped[self.generation, step] = reason
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self.generation = -1
            self._changed.notify_all()
        for s in (self._listener, *self._connections):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
            s.close()
        self.release()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive(), f"{thread.name} is still running"
        for _, _, fd in self._buffers.values():
            os.close(fd)

    def _spawn(self, target: Any, *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            self._spawn(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        who: dict[str, Any] = {}
        try:
            with connection, connection.makefile("rb") as stream:
                while head := stream.read(4):
                    length = int.from_bytes(head, "big")
                    assert 0 < length <= MAX_FRAME, f"a frame of {length} bytes"
                    request = json.loads(stream.read(length))
                    self.requests.append(request)
                    op = request["op"]
                    if op in self.override:
                        reply = self.override[op]
                        if isinstance(reply, HangUp):
                            connection.sendall(reply)
                            return
                    else:
                        reply = self._answer(who, request)
                    files = [reply.pop("fd")] if isinstance(reply, dict) and "fd" in reply else []
                    if not isinstance(reply, bytes):
                        body = json.dumps(reply).encode()
                        reply = len(body).to_bytes(4, "big") + body
                    socket.send_fds(connection, [reply], files)
        except OSError:
            pass  # the rank is gone

    def _answer(self, who: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
        op, step = request["op"], request.get("step", 0)
        if op == "hello":
            if request["gen"] != self.generation:
                return _refuse("generation", f"generation {request['gen']} is not {self.generation}")
            who.update(rank=request["rank"], gen=request["gen"])
            page = str(self.page_path(request["rank"]))
            return _ok(v=1, page=page, store=str(self.store), everySteps=self.every, world=self.world)
        if not who:
            return _refuse("usage", "the first request is hello")
        if who["gen"] != self.generation:
            return _refuse("generation", "an older attempt")
        if op == "resume":
            path, at = self.resume
            return {**_ok(path=path), "step": at} if at >= 0 else {"ok": True, "step": -1}
        if op in ("begin", "buffer", "stage"):
            busy = self._settled(who["rank"], request.get("timeoutMs", 0), wait=op != "stage")
            if busy is not None:
                return _refuse("busy", f"step {busy} is still being written")
        if op == "buffer":
            return self._buffer(who["rank"], request)
        if op == "stage":
            return self._stage(who, request)
        if op == "begin":
            root = self._step_folder(who["gen"], step)
            own, shared = root / f"rank-{who['rank']}", root / "shared"
            own.mkdir(parents=True)
            shared.mkdir(exist_ok=True)
            return _ok(path=str(own), shared=str(shared))
        if op == "prepare":
            root = self._step_folder(who["gen"], step)
            for file in request["files"]:
                assert (root / file["path"]).is_file(), file
            with self._changed:
                self._prepared.setdefault((who["gen"], step), {})[who["rank"]] = request
                self._changed.notify_all()
            return _ok()
        if op == "abort":
            self.drop(step, f"rank {who['rank']} gave up")
            return _ok(state="dropped")
        if op == "verdict":
            return self._verdict(who["gen"], step, request.get("timeoutMs", 0))
        return _ok()

    def release(self) -> None:
        """Lets what is staged be written."""
        with self._changed:
            self.slow = False
            self._changed.notify_all()

    def _settled(self, rank: int, timeout_ms: int, *, wait: bool) -> int | None:
        """The step that is still being written after the time, or None."""
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: rank not in self._writing, (timeout_ms or 60_000) / 1000)
            return self._writing.get(rank)

    def _buffer(self, rank: int, request: dict[str, Any]) -> dict[str, Any]:
        name, size, fd = self._buffers.get(rank, ("", 0, -1))
        if size < request["size"]:
            if fd >= 0:
                os.close(fd)
            name, size, fd = f"{name}b", request["size"], os.memfd_create("fake")
            os.ftruncate(fd, size)
            self._buffers[rank] = name, size, fd
        reply = _ok(buffer=name, size=size)
        return reply if name == request["buffer"] else reply | {"fd": fd}

    def _stage(self, who: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
        self._writing[who["rank"]] = request["step"]
        self._spawn(self._write, dict(who), request)
        return _ok()

    def _write(self, who: dict[str, Any], request: dict[str, Any]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self.slow)
        rank, step = who["rank"], request["step"]
        root = self._step_folder(who["gen"], step)
        for file in request["files"]:
            path = root / file["path"]
            if file.get("staged"):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(os.pread(self._buffers[rank][2], file["length"], file["offset"]))
            assert path.is_file(), file
        with self._changed:
            self._prepared.setdefault((who["gen"], step), {})[rank] = request
            del self._writing[rank]
            self._changed.notify_all()

    def _verdict(self, generation: int, step: int, timeout_ms: int) -> dict[str, Any]:
        key = generation, step
        with self._changed:
            decided = self._changed.wait_for(
                lambda: (
                    (len(self._prepared.get(key, {})) == self.world and not self._held(step))
                    or key in self._dropped
                    or self.generation != generation
                ),
                timeout=(timeout_ms or 120_000) / 1000,
            )
            if timeout_ms and not decided:
                return _ok(state="pending")
            assert decided, f"step {step}: only {sorted(self._prepared.get(key, {}))} prepared"
            if self.generation != generation:
                self._dropped[key] = "a new attempt began"
            if key in self._dropped:
                return _ok(state="dropped", reason=self._dropped[key])
            self.committed[step] = self._step_folder(generation, step)
        return _ok(state="committed")

    def _held(self, step: int) -> bool:
        return self.hold_from is not None and step >= self.hold_from

    def _step_folder(self, generation: int, step: int) -> Path:
        return self.store / "run" / f"step-{step}-g{generation}-0123abcd"


def _ok(**fields: Any) -> dict[str, Any]:
    return {"ok": True, "step": 0, **fields}


def _refuse(code: str, text: str) -> dict[str, Any]:
    return {"ok": False, "code": code, "error": text, "step": 0}
