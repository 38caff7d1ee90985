"""The rank's side of the agreement on a step; elastic/agree's transcript runs here too."""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_shim import FakeShim

import troupe
from troupe import page
from troupe.agreement import Agreement

TRANSCRIPT = Path(__file__).resolve().parents[3] / "elastic" / "agree" / "testdata" / "rank.json"


class Board:
    """A page in memory, written as the shim writes it."""

    def __init__(self) -> None:
        self.fields = memoryview(bytearray(4096)).cast("q")

    def propose(self, number: int, target: int) -> None:
        self.fields[page.PROPOSAL // 8] = 0
        self.fields[page.TARGET // 8] = target
        self.fields[page.PROPOSAL // 8] = number

    def decide(self, number: int, word: int) -> None:
        self.fields[page.VERDICT // 8] = 0
        self.fields[page.AGREED // 8] = word
        self.fields[page.VERDICT // 8] = number


class Holds(Exception):
    """The rank would wait here."""


def test_transcript_of_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides of the language border move alike, event by event."""

    def hold(_: float) -> None:
        raise Holds

    monkeypatch.setattr(time, "sleep", hold)
    cases = json.loads(TRANSCRIPT.read_text())
    assert len(cases) >= 8
    for case in cases:
        board, moves = Board(), []
        rank = Agreement(board.fields, lambda: None)
        for event in case["events"]:
            if "propose" in event:
                board.propose(*event["propose"])
            elif "decide" in event:
                board.decide(*event["decide"])
            elif "off" in event:
                rank.call_off()
            else:
                try:
                    saves = rank.call(event["call"])
                except Holds:
                    moves.append("hold")
                else:
                    moves.append(("end" if rank.ending else "save") if saves else "go")
        state = [board.fields[page.ACKNOWLEDGED // 8], board.fields[page.SETTLED // 8]]
        assert (moves, state) == (case["moves"], case["state"]), case["name"]


def set_pair(shim: FakeShim, number_at: int, value_at: int, number: int, value: int) -> None:
    shim.set_page_field(0, number_at, 0)
    shim.set_page_field(0, value_at, value)
    shim.set_page_field(0, number_at, number)


def test_holds_until_the_verdict(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    troupe.init()
    assert not troupe.should_checkpoint(3)
    set_pair(shim, page.PROPOSAL, page.TARGET, 1, 6)
    assert not troupe.should_checkpoint(4)
    assert shim.page_field(0, page.ACKNOWLEDGED) == 1
    assert not troupe.should_checkpoint(5)
    answer: list[bool] = []
    thread = threading.Thread(target=lambda: answer.append(troupe.should_checkpoint(6)))
    cpu = time.process_time()
    thread.start()
    thread.join(1.0)
    assert not answer, "it held for nobody"
    assert time.process_time() - cpu < 0.5, "holding burns a core"
    set_pair(shim, page.VERDICT, page.AGREED, 1, 2)
    thread.join(20)
    assert answer == [True]
    assert troupe.should_stop()
    assert shim.page_field(0, page.SETTLED) == 1


def test_dropped_save_takes_the_end_back(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    troupe.init()
    set_pair(shim, page.PROPOSAL, page.TARGET, 1, 6)
    assert not troupe.should_checkpoint(5)
    set_pair(shim, page.VERDICT, page.AGREED, 1, 2)
    assert troupe.should_checkpoint(6)
    shim.drop(6, "no space left on device")
    with troupe.checkpoint(6) as ck:
        (ck.path / "model.bin").write_bytes(b"x")
    assert not ck.committed
    assert not troupe.should_stop(), "all ranks go on, since the save was dropped for all"
    assert shim.page_field(0, page.ACKNOWLEDGED) == 0
    assert not troupe.should_checkpoint(7)


def test_freed_when_the_shim_is_gone(
    shim: FakeShim, as_rank: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_rank()
    troupe.init()
    set_pair(shim, page.PROPOSAL, page.TARGET, 1, 6)
    assert not troupe.should_checkpoint(5)
    shim.close()
    shim.socket_path.unlink()
    with pytest.raises(troupe.ConnectionLost):
        troupe.should_checkpoint(6)


def test_freed_when_the_attempt_is_ended(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    troupe.init()
    set_pair(shim, page.PROPOSAL, page.TARGET, 1, 6)
    assert not troupe.should_checkpoint(5)
    shim.set_page_field(0, page.STOP, 1)
    assert not troupe.should_checkpoint(6)
    assert troupe.should_stop()


def test_should_checkpoint_publishes_the_step(shim: FakeShim, as_rank: Callable[[], None]) -> None:
    as_rank()
    troupe.init()
    assert troupe.should_checkpoint(20)
    assert shim.page_field(0, page.STEP) == 20
    assert not troupe.should_checkpoint(13)
    assert shim.page_field(0, page.STEP) == 20, "a step never goes back"
    data = shim.page_path(0).read_bytes()
    assert struct.unpack_from("<q", data, page.CALLS)[0] == 2
