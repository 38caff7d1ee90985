"""Prints every skipped test with its reason and fails on one that test/skips.txt lacks.

A skip may only name hardware or a kernel feature that a probe did not find. Input:
the files of gotest.py (`id<TAB>reason` lines) and JUnit XML files of pytest.
"""

from __future__ import annotations

import sys
from fnmatch import fnmatchcase
from pathlib import Path
from xml.etree import ElementTree

ALLOWED = Path(__file__).parent.parent / "skips.txt"


def allowed() -> list[tuple[str, str]]:
    """The (id, reason) patterns of skips.txt."""
    rows = []
    for number, line in enumerate(ALLOWED.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, bar, reason = line.partition("|")
        if not bar or not name.strip() or not reason.strip():
            sys.exit(f"{ALLOWED}:{number}: want `test id | reason`, both with * and ?")
        if not reason.strip().strip("*? "):
            sys.exit(f"{ALLOWED}:{number}: a reason that matches everything allows everything")
        rows.append((name.strip(), reason.strip()))
    return rows


def skips_of(path: Path) -> list[tuple[str, str]]:
    """The skipped tests that one report names."""
    if path.suffix != ".xml":
        rows = []
        for line in path.read_text().splitlines():
            name, _, reason = line.partition("\t")
            rows.append((name, reason))
        return rows
    rows = []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        skipped = case.find("skipped")
        if skipped is not None and skipped.get("type") != "pytest.xfail":
            name = f"{case.get('classname', '')}.{case.get('name', '')}"
            rows.append((name, skipped.get("message") or "no reason given"))
    return rows


def main(paths: list[str]) -> int:
    rules = allowed()
    bad = 0
    total = 0
    for path in paths:
        if not Path(path).exists():
            sys.exit(f"{path}: no such report; the run that writes it failed")
        for name, reason in skips_of(Path(path)):
            total += 1
            known = any(fnmatchcase(name, n) and fnmatchcase(reason, r) for n, r in rules)
            bad += not known
            print(f"skip{'' if known else ' NOT ALLOWED'}: {name}: {reason}")
    print(f"skips: {total}, of which {bad} not in {ALLOWED.parent.name}/{ALLOWED.name}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
