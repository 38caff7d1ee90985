#!/usr/bin/env bash
# python-env.sh run|test|with FILE: prints the path of a Python that can run the examples
# (run), or the tests and linters as well (test), or has what a file of requirements names
# besides (with). Progress goes to stderr.
#
# The first of these that has torch, numpy and scikit-learn is used as it is:
#   1. $TROUPE_PYTHON
#   2. python3 on the PATH
#   3. a virtual environment in ${TROUPE_ENV_CACHE:-~/.cache/troupe}, named after a
#      digest of the requirements and the interpreter, made when it is not there.
# For `test` the caller's own Python is never changed: what it lacks goes into a small
# environment of our own that sees the caller's packages.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

here=$root/test/scripts
mode=${1:-run}
[[ $mode == run || $mode == test || $mode == with && -f ${2:-} ]] ||
  die "usage: python-env.sh run|test|with FILE" "" 64

# find_spec instead of an import: torch takes seconds to import, and a broken torch
# should fail loudly in the example rather than trigger a 6 GB download here.
has() {
  local python=$1
  shift
  "$python" - "$@" >/dev/null 2>&1 <<'PY'
import importlib.util as u, sys
sys.exit(sys.version_info < (3, 10) or any(u.find_spec(m) is None for m in sys.argv[1:]))
PY
}

digest() { sha256sum | cut -c1-12; }

# install PYTHON STAMP REQUIREMENTS…: pip install, and a stamp only when it worked.
install() {
  local python=$1 stamp=$2 r args=()
  shift 2
  for r in "$@"; do args+=(-r "$r"); done
  "$python" -m pip install --quiet --disable-pip-version-check "${args[@]}" >&2 ||
    die "pip could not install the requirements ($*)" \
      "set TROUPE_PYTHON to a Python that has torch, numpy and scikit-learn"
  touch "$stamp"
}

# make_env DIR BASE: a virtual environment, started afresh when an earlier try was cut
# off. pyvenv.cfg alone proves nothing, hence the stamp.
make_env() {
  local dir=$1 base=$2
  [[ -e $dir/.made ]] && return
  rm -rf "$dir"
  "$base" -m venv "$dir" >&2 ||
    die "$base -m venv $dir failed" "on Debian: apt-get install python3-venv"
  touch "$dir/.made"
}

own_env() {
  local base=$1 dir=$2
  make_env "$dir" "$base"
  if [[ ! -e $dir/.run ]]; then
    say "installing torch, numpy and scikit-learn into $dir (once; a few minutes, 6 GB on disk)"
    install "$dir/bin/python" "$dir/.run" "$here/requirements-run.txt"
  fi
  test_tools "$dir/bin/python" "$dir"
}

test_tools() {
  local python=$1 dir=$2
  [[ $mode == test ]] || return 0
  local stamp
  stamp=$dir/.test-$(digest <"$here/requirements-test.txt")
  if [[ ! -e $stamp ]]; then
    say "installing the test tools into $dir"
    install "$python" "$stamp" "$here/requirements-test.txt"
  fi
}

# beside CALLER DIR: an environment of our own that sees the caller's packages through
# a .pth file. --system-site-packages would see only those of the base interpreter
# when the caller is itself a virtual environment.
beside() {
  local caller=$1 dir=$2
  make_env "$dir" "$caller"
  "$caller" -c 'import site, sysconfig
paths = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    + (site.getsitepackages() if site.ENABLE_USER_SITE is not None else [])
    + ([site.getusersitepackages()] if site.ENABLE_USER_SITE else []))
print("\n".join(paths))' >"$("$dir/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/caller.pth"
  test_tools "$dir/bin/python" "$dir"
}

if [[ $mode == with ]]; then
  caller=$("${BASH_SOURCE[0]}" run)
  dir=$cache/with-$({ cat "$2"; "$caller" -c 'import sys; print(sys.prefix, sys.version)'; } | digest)
  with() {
    beside "$caller" "$dir"
    [[ -e $dir/.with ]] || install "$dir/bin/python" "$dir/.with" "$2"
  }
  locked "$dir.lock" with "$dir" "$2"
  echo "$dir/bin/python"
  exit
fi

for caller in "${TROUPE_PYTHON:-}" python3; do
  [[ -n $caller ]] || continue
  if ! path=$(command -v "$caller"); then
    [[ $caller == python3 ]] || die "TROUPE_PYTHON is $caller, which is no program" "" 64
    continue
  fi
  if ! has "$path" torch numpy sklearn; then
    [[ $caller == python3 ]] ||
      say "TROUPE_PYTHON ($caller) lacks one of torch, numpy, scikit-learn, or is older than 3.10"
    continue
  fi
  if [[ $mode == run ]]; then
    echo "$path"
    exit
  fi
  dir=$cache/tools-$("$path" -c 'import sys; print(sys.prefix, sys.version)' | digest)
  locked "$dir.lock" beside "$path" "$dir"
  echo "$dir/bin/python"
  exit
done

base=$(command -v python3) || die "no python3 on the PATH" "on Debian: apt-get install python3 python3-venv"
"$base" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
  die "$("$base" --version) is too old: Troupe needs 3.10 or newer" "set TROUPE_PYTHON"
dir=$cache/venv-$({ cat "$here/requirements-run.txt"; "$base" -c 'import sys; print(sys.base_prefix, sys.version)'; } | digest)
locked "$dir.lock" own_env "$base" "$dir"
echo "$dir/bin/python"
