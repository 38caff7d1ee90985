"""Frames, bounds, and what a broken shim turns into."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_shim import FakeShim, HangUp

import troupe
from troupe import protocol
from troupe.protocol import Client


def raw(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def test_frame_is_length_and_json() -> None:
    frame = protocol.encode({"op": "begin", "step": 3})
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert json.loads(frame[4:]) == {"op": "begin", "step": 3}


def test_largest_frame_passes_and_one_more_byte_does_not() -> None:
    room = protocol.MAX_FRAME - len(protocol.encode({"op": "x", "name": ""})) + 4
    assert len(protocol.encode({"op": "x", "name": "a" * room})) == protocol.MAX_FRAME + 4
    with pytest.raises(troupe.TroupeError, match="65537 bytes") as e:
        protocol.encode({"op": "x", "name": "a" * (room + 1)})
    assert e.value.code == "usage"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, object()])
def test_what_is_not_json_is_not_sent(value: Any) -> None:
    with pytest.raises(troupe.TroupeError) as e:
        protocol.encode({"op": "report", "value": value})
    assert e.value.code == "usage"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "frame of 0 bytes"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 60_000, "not JSON"),
        (b"[]", "boolean 'ok'"),
        (b"null", "boolean 'ok'"),
        (b'{"ok":1}', "boolean 'ok'"),
        (b'{"error":"x"}', "boolean 'ok'"),
    ],
)
def test_malformed_reply_is_typed_and_closes(
    shim: FakeShim, as_rank: Callable[[], None], body: bytes, message: str
) -> None:
    as_rank()
    troupe.init()
    shim.override["report"] = raw(body)
    with pytest.raises(troupe.ProtocolError, match=message):
        troupe.report(loss=1.0)
    # The next reply would be another request's: the connection is not used again.
    del shim.override["report"]
    with pytest.raises(troupe.ConnectionLost, match="closed"):
        troupe.report(loss=1.0)


@pytest.mark.parametrize("length", [(64 << 10) + 1, 0x7FFFFFFF, 0xFFFFFFFF])
def test_oversized_reply_is_refused_unread(shim: FakeShim, as_rank: Callable[[], None], length: int) -> None:
    as_rank()
    troupe.init()
    shim.override["report"] = length.to_bytes(4, "big")
    with pytest.raises(troupe.ProtocolError, match=str(length)):
        troupe.report(loss=1.0)


def test_unknown_fields_are_accepted(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    page = str(shim.page_path(0))
    shim.override["hello"] = {"ok": True, "v": 7, "page": page, "world": 1, "step": 0, "later": [1]}
    assert troupe.init().managed


@pytest.mark.parametrize("op", ["begin", "prepare", "verdict"])
@pytest.mark.parametrize("part", [b"", b"\0\0", raw(b'{"ok":true}')[:9]], ids=["none", "head", "body"])
def test_shim_gone_during_a_call(shim: FakeShim, as_rank: Callable[[], None], op: str, part: bytes) -> None:
    as_rank()
    shim.override[op] = HangUp(part)
    ck = troupe.checkpoint(1)
    with pytest.raises(troupe.ConnectionLost, match=op) as e, ck:
        (ck.path / "model.pt").write_bytes(b"x")
    assert e.value.code == "gone"
    assert not ck.committed


def test_interrupted_call_closes_the_connection(
    shim: FakeShim, as_rank: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while waiting: the reply is still to come, and must not answer the next request."""
    as_rank()
    troupe.init()

    def interrupt(body: bytes) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(protocol, "decode", interrupt)
        troupe.report(loss=1.0)
    with pytest.raises(troupe.ConnectionLost, match="closed"):
        troupe.report(loss=1.0)


def test_nobody_listens(short_path: Path) -> None:
    with pytest.raises(troupe.ConnectionLost, match=r"nobody\.sock"):
        Client(str(short_path / "nobody.sock"))


def test_socket_path_that_no_address_holds() -> None:
    with pytest.raises(troupe.TroupeError, match="107 bytes") as e:
        Client("/x/" + "a" * 200)
    assert e.value.code == "environment"


@pytest.mark.parametrize(
    ("reply", "kind", "code"),
    [
        ({"ok": True, "v": 0, "step": 0}, troupe.VersionMismatch, "version"),
        ({"ok": False, "code": "version", "error": "too old", "step": 0}, troupe.VersionMismatch, "version"),
        (
            {"ok": False, "code": "generation", "error": "old", "step": 0},
            troupe.StaleGeneration,
            "generation",
        ),
        ({"ok": False, "code": "ended", "error": "the job ended"}, troupe.TroupeError, "ended"),
        ({"ok": False}, troupe.TroupeError, "protocol"),
        ({"ok": False, "code": 5, "error": []}, troupe.TroupeError, "protocol"),
        ({"ok": True, "v": "1"}, troupe.ProtocolError, "protocol"),
        ({"ok": True, "v": True}, troupe.ProtocolError, "protocol"),
        ({"ok": True, "v": 1}, troupe.ProtocolError, "protocol"),  # no page
        ({"ok": True, "v": 1, "world": 5, "page": "p"}, troupe.ProtocolError, "protocol"),
        ({"ok": True, "v": 1, "world": 1, "page": "missing"}, troupe.TroupeError, "page"),
    ],
)
def test_refused_hello(
    shim: FakeShim, as_rank: Callable[[], None], reply: dict[str, Any], kind: type[Exception], code: str
) -> None:
    as_rank()
    shim.override["hello"] = reply
    with pytest.raises(kind) as e:
        troupe.init()
    assert isinstance(e.value, troupe.TroupeError)
    assert e.value.code == code


def test_older_generation_is_told_so(
    shim: FakeShim, as_rank: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """P3."""
    as_rank()
    monkeypatch.setenv("TROUPE_GENERATION", "0")
    with pytest.raises(troupe.StaleGeneration, match="generation 0 is not 1"):
        troupe.init()


def test_hello_says_who_calls(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    import os

    as_rank()
    troupe.init()
    troupe.init()
    assert shim.requests == [{"op": "hello", "v": 1, "rank": 0, "gen": 1, "pid": os.getpid()}]
