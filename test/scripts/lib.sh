# Shared by the scripts in this folder; sourced, never run.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

# Fresh clones share one cache, so that a second clone downloads nothing.
cache=${TROUPE_ENV_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/troupe}

say() { printf '%s\n' "$*" >&2; }

die() {
  say "error: $1"
  [[ $# -lt 2 ]] || say "help: $2"
  exit "${3:-1}"
}

# locked FILE COMMAND…: one process at a time. Two makes of two clones may want the
# same environment at once, and the second must find it finished.
locked() {
  local file=$1
  shift
  mkdir -p "$(dirname "$file")" || die "cannot make $(dirname "$file")" \
    "set TROUPE_ENV_CACHE to a folder that you may write"
  if command -v flock >/dev/null; then
    (
      exec 9>"$file"
      flock -n 9 || { say "waiting for another process that prepares $file"; flock 9; }
      "$@"
    )
  else
    "$@"
  fi
}
