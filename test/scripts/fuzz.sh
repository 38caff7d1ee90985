#!/usr/bin/env bash
# fuzz.sh [TIME]: runs every fuzzer of the tree for so long each, one after the other. What
# one finds lies in its package's testdata/fuzz, where the ordinary tests run it again.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$root"

time=${1:-60s}
bad=()
while IFS=: read -r file name; do
  echo "$name in $(dirname "$file")"
  # Minimizing one input may take a minute by default, in which nothing else is tried.
  go test -run '^$' -fuzz "^$name\$" -fuzztime "$time" -fuzzminimizetime 1s "./$(dirname "$file")" || bad+=("$name")
done < <(grep -rno --include='*_test.go' '^func Fuzz[A-Za-z0-9]*' . | sed 's/:[0-9]*:func /:/; s/^\.\///' | sort)

if ((${#bad[@]})); then
  printf 'FOUND SOMETHING: %s\n' "${bad[*]}"
  exit 1
fi
echo "no fuzzer found anything"
