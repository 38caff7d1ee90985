#!/usr/bin/env bash
# page.sh [FOLDER]: looks at the pages of a real head in Chromium, and leaves screenshots in
# the folder. It wants a Chromium and a Node of this machine, and npm for two libraries.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$root"

shots=${1:-$root/.cache/page}
browser=${CHROMIUM:-$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)}
[[ -n $browser ]] || { say "skip: no chromium, chromium-browser or google-chrome on the PATH, and CHROMIUM names none"; exit 0; }
for tool in node npm; do
  command -v "$tool" >/dev/null || { say "skip: no $tool on the PATH"; exit 0; }
done

# Once for each change of the lock file.
if ! cmp -s test/page/package-lock.json test/page/node_modules/.installed; then
  npm ci --prefix test/page --ignore-scripts >&2
  cp test/page/package-lock.json test/page/node_modules/.installed
fi
node test/page/page.mjs "$root/bin/troupe" "$browser" "$shots"
