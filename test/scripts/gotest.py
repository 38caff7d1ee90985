"""Runs `go test -json` with the given arguments and prints what `go test` prints.

The closing line of every package, each failing test with all of its output, and a
last line with counts go to stdout. What was skipped is written to the file named by
--skips, one `id<TAB>reason` a line, for check_skips.py. The exit code is go's.

Only this wrapper sees both: plain `go test` hides skips, `-v` drowns the failures.
"""

from __future__ import annotations

import argparse
import collections
import json
import subprocess
import sys
from pathlib import Path

MAX_LINES, MAX_WORDS = 3, 400  # of what is said again of a failing test
MODULE = "github.com/troupe-runtime/troupe/"


def reason_of(lines: list[str]) -> str:
    """The text that t.Skip printed: `    file_test.go:12: why` and what follows."""
    said = [line.strip() for line in lines if line.startswith("    ")]
    said = [line.split(": ", 1)[-1] for line in said if not line.startswith("--- ")]
    return " ".join(said) or "no reason given"


def first_words(lines: list[str]) -> list[str]:
    """What a failing test said first, for the end of a long log."""
    kept = [line.strip() for line in lines if not line.startswith(("=== ", "--- ")) and line.strip()]
    return [line[:MAX_WORDS] for line in kept[:MAX_LINES]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--skips", type=Path, required=True)
    parser.add_argument("args", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    args = [a for a in options.args if a != "--"]

    output: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
    failed: list[tuple[str, str]] = []
    said: dict[tuple[str, str], list[str]] = {}
    skips: list[tuple[str, str]] = []
    counts: collections.Counter[str] = collections.Counter()
    with subprocess.Popen(
        ["go", "test", "-json", *args], stdout=subprocess.PIPE, text=True, errors="replace"
    ) as go:
        assert go.stdout is not None
        for line in go.stdout:
            try:
                event = json.loads(line)
            except json.JSONDecodeError:
                print(line, end="", flush=True)
                continue
            package = event.get("Package") or event.get("ImportPath", "")
            test = event.get("Test", "")
            action = event["Action"]
            if action in ("output", "build-output"):
                text = event.get("Output", "")
                if action == "build-output":
                    print(text, end="", flush=True)
                elif test:
                    output[package, test].append(text)
                # Package level: closing lines, panics, race reports. "PASS" and
                # "no test files" say nothing that the closing line does not.
                elif text.strip() != "PASS" and "[no test files]" not in text:
                    print(text, end="", flush=True)
            elif test and action in ("pass", "fail", "skip"):
                counts[action] += 1
                if action == "fail":
                    failed.append((package, test))
                    print("".join(output[package, test]), end="", flush=True)
                    said[package, test] = first_words(output[package, test])
                if action == "skip":
                    name = f"{package.removeprefix(MODULE)}.{test}"
                    skips.append((name, reason_of(output[package, test])))
                output.pop((package, test), None)
            elif not test and action == "fail":
                counts["packages failed"] += 1
                # A panic or a time-out ends a package in the middle of its tests.
                for key in [k for k in output if k[0] == package]:
                    print("".join(output.pop(key)), end="", flush=True)
    options.skips.parent.mkdir(parents=True, exist_ok=True)
    options.skips.write_text("".join(f"{name}\t{why}\n" for name, why in skips))
    if failed:
        print("failed tests:")
        for package, test in failed:
            print(f"  {package.removeprefix(MODULE)}.{test}")
            for line in said[package, test]:
                print(f"      {line}")
    print(
        f"go: {counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped",
        flush=True,
    )
    if go.returncode == 0 and counts["pass"] == 0:
        print("go: no test ran", file=sys.stderr)
        return 1
    return go.returncode


if __name__ == "__main__":
    sys.exit(main())
