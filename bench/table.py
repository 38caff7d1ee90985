"""Writes bench/results/table.md: the rows of all results, with the machine's description.

`table.py NAME…` says which results belong in it, in order. One that is missing is named
in the table and makes the exit code 1. Results of different machines do not compare and
give no table.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import measure
from measure import Row, say

# What must be the same in all results: not the load, which every one has its own of.
SAME = ("cores", "cpu", "memoryGiB", "kernel", "python", "torch", "troupe")


def main(names: list[str]) -> int:
    rows: list[Row] = []
    lines: list[str] = []
    about: dict[str, Any] | None = None
    bad = False
    for name in names:
        try:
            result = json.loads((measure.RESULTS / f"{name}.json").read_text())
        except OSError:
            lines.append(f"- {name}: NOT MEASURED")
            bad = True
            continue
        here = result["machine"]
        about = here if about is None else about
        if changed := [k for k in SAME if here[k] != about[k]]:
            sys.stderr.write(
                f"error: {name} was measured elsewhere than the others: {', '.join(changed)} differ\n"
            )
            return 1
        lines.append(f"- {name}: {result['taken']}, load before {here['loadBefore']}")
        lines += [f"  - failed: {text.splitlines()[0]}" for text in result.get("failed", [])]
        rows += [Row.read(r) for r in result["rows"]]
    if about is None:
        sys.stderr.write("error: no results; run `make bench`\n")
        return 1
    text = [
        "# Measured",
        "",
        measure.machine_text(about).rpartition("; ")[0],
        "",
        *lines,
        "",
        *measure.table(rows),
        "",
        "`(all)` is the smallest and the largest value; a figure is a median, a count is a sum.",
    ]
    path = measure.RESULTS / "table.md"
    path.write_text("\n".join(text) + "\n")
    say(*text, "", f"written to {path.relative_to(measure.ROOT)}")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["recovery", "memory", "run", "checkpoint"]))
