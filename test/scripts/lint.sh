#!/usr/bin/env bash
# lint.sh check|fmt: runs every linter and says at the end which failed, or formats.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$root"

golangci=$(test/scripts/tool.sh golangci-lint)
gofumpt=$(test/scripts/tool.sh gofumpt)
python=$(test/scripts/python-env.sh test)

# What git would commit, so that a virtual environment or a scratch file in the
# checkout never counts.
tracked() { git ls-files -z --cached --others --exclude-standard -- "$@"; }
python_files() { tracked '*.py' '*.pyi'; }

if [[ ${1:-check} == fmt ]]; then
  tracked '*.go' | xargs -0r "$gofumpt" -w
  "$golangci" fmt # the order of imports
  python_files | xargs -0r "$python" -m ruff format --quiet
  python_files | xargs -0r "$python" -m ruff check --quiet --fix
  exit
fi

bad=()
check() {
  local name=$1
  shift
  printf '== %s\n' "$name"
  "$@" || bad+=("$name")
}

formatted() {
  local out
  out=$(tracked '*.go' | xargs -0r "$gofumpt" -l)
  [[ -z $out ]] || { printf 'not formatted (make fmt):\n%s\n' "$out"; return 1; }
}

ruff() {
  python_files | xargs -0r "$python" -m ruff check --quiet &&
    python_files | xargs -0r "$python" -m ruff format --check --quiet
}

# bash -n finds what a shell would trip over half way through a run.
shells() {
  local f
  while IFS= read -r -d '' f; do
    [[ $(head -c 20 "$f" | tr -d '\0') != '#!'*bash* ]] || bash -n "$f" || return 1
  done < <(tracked test/scripts .ci bench)
}

check gofumpt formatted
check golangci-lint "$golangci" run ./...
# The other build of the GPU code, which a machine without gcc makes.
check "vet without cgo" env CGO_ENABLED=0 go vet -tags nonvml ./cmd/... ./worker/...
check ruff ruff
types() {
  (cd sdk/python && "$python" -m mypy) && "$python" -m mypy --strict --no-incremental examples/quickstart test/scripts
}
check mypy types
check 'bash -n' shells

if ((${#bad[@]})); then
  printf 'lint FAILED: %s\n' "${bad[*]}"
  exit 1
fi
echo "lint passed"
