"""The launcher's table against the parser of the installed torch: a new flag there fails here."""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import subprocess
from typing import Any

import pytest

from troupe.binary import find_binary

pytestmark = pytest.mark.torch

ZERO: dict[str, Any] = {"flag": False, "whole number": None, "text": None, "number": None, "list": []}


@pytest.fixture(scope="module")
def theirs() -> argparse.ArgumentParser:
    from torch.distributed.run import get_args_parser

    return get_args_parser()


def actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [a for a in parser._actions if a.option_strings and a.dest != "help"]


def explain(words: list[str], command: str = "launch") -> dict[str, Any] | None:
    """How the binary takes a command line; None when it refuses it."""
    out = subprocess.run(
        [find_binary(), command, "--explain-flags", "-o", "json", *words],
        capture_output=True,
        text=True,
        check=False,
        env=dict(os.environ),
    )
    if out.returncode == 64:
        return None
    assert out.returncode == 0, out.stderr
    result: dict[str, Any] = json.loads(out.stdout)
    return result


def typed(flag: dict[str, Any], text: str, *, given: bool) -> Any:
    """A value as argparse has it."""
    kind = flag["kind"]
    if kind == "list":
        return flag.get("list") or []
    if kind == "flag":
        return text == "true"
    if text == "" and not given and flag["dest"] not in ("rdzv_endpoint", "rdzv_conf"):
        empty_text = ("log_line_prefix_template", "local_ranks_filter")
        return "" if flag["dest"] in empty_text else ZERO[kind]
    return {"whole number": int, "number": float}.get(kind, str)(text)


def values(explained: dict[str, Any]) -> dict[str, Any]:
    return {f["dest"]: typed(f, f["value"], given=f["from"] != "default") for f in explained["flags"]}


def test_every_option_is_known_and_alike(theirs: argparse.ArgumentParser) -> None:
    explained = explain([])
    assert explained is not None
    ours = {f["dest"]: f for f in explained["flags"]}
    assert len(actions(theirs)) > 25
    for action in actions(theirs):
        flag = ours.pop(action.dest, None)
        assert flag is not None, f"torch's launcher has {action.option_strings}, ours does not"
        assert set(flag["spellings"]) == set(action.option_strings)
        assert (flag["kind"] == "flag") == (action.nargs == 0), action.dest
        assert tuple(flag.get("choices", ())) == tuple(action.choices or ()), action.dest
        numbers = {int: "whole number", float: "number"}
        assert numbers.get(action.type, flag["kind"]) == flag["kind"], action.dest  # type: ignore[arg-type]
        # torch's two classes of options that read the environment.
        assert ("environment" in flag) == (type(action).__name__ in ("env", "check_env")), action.dest
        if action.dest != "print_completion":
            assert typed(flag, flag["default"], given=False) == action.default, action.dest
    assert not ours, "options that torch's launcher does not have"


LINES = [
    "train.py",
    "--nproc-per-node=4 train.py --lr=16 --nproc-per-node=8",
    "--nproc_per_node 4 --nnodes 1 train.py a b",
    "--standalone --nnodes=1 --nproc-per-node=gpu -m package.train -m x",
    "-r3 -t 1 train.py",
    "-r 3 --tee=0:1,1:3 train.py",
    "-mr2 package.train",
    "-r 0:1,1:2 --log-dir logs --role trainer train.py --role other",
    "--no-python -- program -x",
    "--rdzv-backend=c10d --rdzv-endpoint=localhost:0 --rdzv-id=7 --rdzv-conf=a=1,b=2 train.py",
    "--stand --rol trainer train.py",
    "--role=-x --master-addr= --master-port 0 train.py",
    "--signals-to-handle SIGTERM --shutdown-timeout 3 --virtual-local-rank train.py",
    "--duplicate-stdout-filters a,,b,c, train.py",
    "--node-rank=1 --node-rank=2 train.py",
    "--numa-binding node --logs-specs mine --start-method fork train.py",
    "--role 'two words' train.py '' --",
    "-- --script --flag",
    "train.py --r=16 -r -- -h",
]
BAD_LINES = [
    "--unheard-of train.py",
    "--rdzv x train.py",
    "--max-restarts many train.py",
    "--nnodes --standalone train.py",
    "--nnodes -- train.py",
    "--standalone=1 train.py",
    "--start-method=thread train.py",
    "--tee -1x train.py",
    "-x train.py",
]


def same(theirs: argparse.ArgumentParser, words: list[str]) -> None:
    expected: dict[str, Any] = vars(theirs.parse_args(words))
    script, arguments = expected.pop("training_script"), expected.pop("training_script_args")
    expected.pop("print_completion", None)
    explained = explain(words)
    assert explained is not None, words
    found = values(explained)
    assert {k: found[k] for k in expected} == expected, words
    assert (explained["script"], explained.get("arguments", [])) == (script, arguments), words


@pytest.mark.parametrize("line", LINES)
def test_same_line_same_meaning(theirs: argparse.ArgumentParser, line: str) -> None:
    if line.startswith("train.py --r=16"):
        # argparse takes --r of the script for an option of its own; that is the one
        # habit that nobody wants back.
        explained = explain(shlex.split(line))
        assert explained is not None
        assert explained["arguments"] == ["--r=16", "-r", "--", "-h"]
        return
    same(theirs, shlex.split(line))


@pytest.mark.parametrize("line", BAD_LINES)
def test_both_refuse(theirs: argparse.ArgumentParser, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        theirs.parse_args(line.split())
    assert explain(line.split()) is None
    capsys.readouterr()


def test_random_lines_mean_the_same(theirs: argparse.ArgumentParser) -> None:
    """Options in any order, spelling and form, with values that fit."""
    seed = random.randrange(1 << 32)
    draw = random.Random(seed)
    texts = {
        "nnodes": "1:1",
        "nproc_per_node": "2",
        "redirects": "1",
        "tee": "0:3",
        "local_ranks_filter": "0",
    }
    for _ in range(40):
        words: list[str] = []
        for action in draw.sample(actions(theirs), draw.randrange(6)):
            if action.dest == "print_completion":
                continue
            name = draw.choice(list(action.option_strings))
            if action.nargs == 0:
                words.append(name)
                continue
            value = texts.get(action.dest, "x=1" if action.dest == "rdzv_conf" else "word")
            if action.choices:
                value = draw.choice(list(action.choices))
            elif action.type in (int, float):
                value = str(draw.randrange(5))
            if draw.random() < 0.5:
                words += [name, value]
            else:
                words.append(name + (value if len(name) == 2 else f"={value}"))
        if "-m" in words or "--module" in words:
            words = [w for w in words if "python" not in w]
        words += draw.choice([["train.py"], ["--", "train.py", "--x"], ["train.py", "a", "-r3", "--tee"]])
        if words[-1] == "--tee" or "-r3" in words[-2:]:
            words = words[: words.index("train.py") + 2]  # argparse reads on behind the script
        try:
            same(theirs, words)
        except AssertionError as e:
            pytest.fail(f"seed {seed}: {e}")


def test_environment_means_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.run import get_args_parser

    environ = {
        "PET_NPROC_PER_NODE": "3",
        "PET_MAX_RESTARTS": "2",
        "PET_MODULE": "0",
        "PET_STANDALONE": "2",
        "PET_REDIRECTS": "3",
        "PET_MONITOR_INTERVAL": "7",
        "PET_LOGS_SPECS": "ignored",
        "PET_RDZV_CONF": "",
        "PET_DUPLICATE_STDERR_FILTERS": "a,b",
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    same(get_args_parser(), ["--max-restarts=5", "train.py"])


def test_run_takes_them_too(theirs: argparse.ArgumentParser) -> None:
    words = [a.option_strings[-1] for a in actions(theirs) if a.nargs == 0]
    words.remove("--no_python")  # excludes --module
    explained = explain([*words, "--nproc_per_node=2", "-r3", "train.py", "--r=16"], "run")
    assert explained is not None
    assert explained["arguments"] == ["--r=16"]
    assert {f["dest"] for f in explained["flags"]} == {a.dest for a in actions(theirs)}
