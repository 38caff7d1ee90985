"""The rank's side of the shim's Unix socket: frames, bounds and one client.

A frame is a 4-byte big-endian length and that many bytes of one JSON object, at most
64 KiB either way. Each request gets exactly one reply, in order. What an operation
means is not known here; see session.py and checkpoint.py.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .errors import ConnectionLost, ProtocolError, TroupeError, from_reply

if TYPE_CHECKING:
    import socket

VERSION = 1
MAX_FRAME = 64 << 10
# A Unix address holds 108 bytes with its final zero; longer ones are truncated by
# some systems, which would connect to the wrong socket.
MAX_SOCKET_PATH = 107
HELLO_TIMEOUT_S = 60.0


def encode(message: Mapping[str, Any]) -> bytes:
    """Return the frame of one message.

    Raises:
        TroupeError: code ``usage``; it is not JSON (NaN included) or over 64 KiB.
    """
    import json

    try:
        body = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as e:
        raise TroupeError(f"cannot send {message.get('op')!r}: {e}") from e
    if len(body) > MAX_FRAME:
        raise TroupeError(
            f"{message.get('op')!r} needs {len(body)} bytes, a frame holds {MAX_FRAME}; "
            "name fewer files or a shorter cursor"
        )
    return len(body).to_bytes(4, "big") + body


def decode(body: bytes) -> dict[str, Any]:
    """Return the reply in the body of a frame.

    Raises:
        ProtocolError: it is not a JSON object with a boolean ``ok``.
    """
    import json

    try:
        reply = json.loads(body)
    except (ValueError, RecursionError) as e:
        raise ProtocolError(f"shim sent a reply that is not JSON: {e}", code="protocol") from e
    if not isinstance(reply, dict) or not isinstance(reply.get("ok"), bool):
        raise ProtocolError("shim sent a reply without a boolean 'ok'", code="protocol")
    return reply


def field(reply: Mapping[str, Any], name: str, kind: type[Any]) -> Any:
    """Return a field of a reply, or the zero value of its kind when absent.

    Raises:
        ProtocolError: the field is there and of another kind.
    """
    value = reply.get(name)
    if value is None:
        return kind()
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ProtocolError(f"shim sent {name}={value!r}, expected {kind.__name__}", code="protocol")
    return value


class Client:
    """One connection to the shim. Calls of several threads take turns.

    A call that fails half-way closes the connection for good, because the next reply
    would belong to another request.
    """

    def __init__(self, path: str) -> None:
        """Connect.

        Raises:
            ConnectionLost: nobody listens there.
            TroupeError: code ``environment``; the path cannot be a socket's address.
        """
        import socket

        if len(os.fsencode(path)) > MAX_SOCKET_PATH:
            raise TroupeError(
                f"socket path {path!r} is longer than {MAX_SOCKET_PATH} bytes", code="environment"
            )
        self._path = path
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(HELLO_TIMEOUT_S)
            self._socket.connect(path)
        except OSError as e:
            self.close()
            raise ConnectionLost(f"cannot reach the shim at {path}: {e}", code="gone") from e

    def call(self, op: str, *, timeout: float | None = None, **fields: Any) -> dict[str, Any]:
        """Send one request and return its reply, which is positive.

        Args:
            op: the operation.
            timeout: seconds; None waits as long as the shim lives. A rank dies with its
                shim (P6), so that waiting for it needs no end of its own.
            fields: the other fields of the request.

        Raises:
            TroupeError: the shim refused (its code), or the request cannot be sent.
            ConnectionLost: the shim left.
            ProtocolError: the shim sent something else than a reply.
        """
        return self._exchange(op, fields, timeout, None)

    def call_file(self, op: str, **fields: Any) -> tuple[dict[str, Any], int]:
        """Send one request and return its reply and the descriptor that came with it, or -1.

        The descriptor is the caller's to close.

        Raises:
            TroupeError: as call() does.
        """
        files: list[int] = []
        try:
            reply = self._exchange(op, fields, None, files)
        except BaseException:
            for fd in files:
                os.close(fd)
            raise
        for fd in files[1:]:  # nobody sends more than one
            os.close(fd)
        return reply, files[0] if files else -1

    def _exchange(
        self, op: str, fields: Mapping[str, Any], timeout: float | None, files: list[int] | None
    ) -> dict[str, Any]:
        if os.getpid() != self._pid:
            raise TroupeError("a forked child may not use its parent's connection", code="forked")
        frame = encode({"op": op, **fields})
        with self._lock:
            sock = self._socket
            if sock is None:
                raise ConnectionLost(f"{op!r}: the connection to the shim is closed", code="gone")
            try:
                sock.settimeout(timeout)
                sock.sendall(frame)
                reply = decode(self._receive(sock, files))
            except OSError as e:
                self.close()
                raise ConnectionLost(f"the shim at {self._path} left during {op!r}: {e}", code="gone") from e
            except BaseException:  # KeyboardInterrupt too: the reply is still on its way
                self.close()
                raise
        if not reply["ok"]:
            raise from_reply(op, reply)
        return reply

    def close(self) -> None:
        """Close this process's end; the parent's stays open after a fork."""
        sock, self._socket = self._socket, None
        if sock is not None:
            sock.close()

    def _receive(self, sock: socket.socket, files: list[int] | None) -> bytes:
        head = b""
        if files is not None:  # a descriptor comes with the first byte of a frame
            import socket as module

            head, found, _, _ = module.recv_fds(sock, 4, 1)
            files += found
            if not head:
                raise ConnectionResetError("end of stream")
        length = int.from_bytes(head + self._exactly(sock, 4 - len(head)), "big")
        if not 0 < length <= MAX_FRAME:
            raise ProtocolError(f"shim announced a frame of {length} bytes", code="protocol")
        return self._exactly(sock, length)

    @staticmethod
    def _exactly(sock: socket.socket, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            part = sock.recv(count - len(data))
            if not part:
                raise ConnectionResetError("end of stream")
            data += part
        return bytes(data)
