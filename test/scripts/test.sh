#!/usr/bin/env bash
# test.sh full|fast|go|python: runs the tests. Both halves always run, so that one look
# at the end shows everything that is wrong.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$root"

mode=${1:-full}
case $mode in full | fast | go | python) ;; *) die "usage: test.sh full|fast|go|python" "" 64 ;; esac

# Tests that start ranks use this Python, and the very binaries that make built.
python=$(test/scripts/python-env.sh test)
export TROUPE_PYTHON=$python TROUPE_BIN=$root/bin/troupe
export PYTHONPATH=$root/sdk/python${PYTHONPATH:+:$PYTHONPATH}
reports=$root/.cache/reports
rm -rf "$reports"
mkdir -p "$reports"

bad=()
written=()

go_tests() {
  local args=(-timeout 15m)
  if [[ $mode == fast ]]; then
    # Without the race detector they wait more than they compute; `make lint` vets.
    args+=(-p 4 -parallel 4 -short -vet=off)
  else
    # Two packages at a time: tests of real processes share the cores with their ranks.
    # -count=1: the cache does not see that bin/troupe or a Python file changed.
    args+=(-p 2 -race -count=1)
  fi
  "$python" test/scripts/gotest.py --skips "$reports/go.skips" -- "${args[@]}" ./... || bad+=("go test")
  written+=("$reports/go.skips")
}

python_tests() {
  local args=(-q -rs --junitxml="$reports/pytest.xml")
  [[ $mode != fast ]] || args+=(-m "not torch")
  (cd sdk/python && "$python" -m pytest "${args[@]}") || bad+=(pytest)
  written+=("$reports/pytest.xml")
  # The arithmetic of the benchmarks, without running one.
  "$python" -m pytest -q -rs --junitxml="$reports/bench.xml" bench || bad+=("pytest bench")
  written+=("$reports/bench.xml")
}

[[ $mode == python ]] || go_tests
[[ $mode == go ]] || python_tests
"$python" test/scripts/check_skips.py "${written[@]}" || bad+=(skips)

if ((${#bad[@]})); then
  printf 'FAILED: %s\n' "${bad[*]}"
  exit 1
fi
echo "all tests passed"
