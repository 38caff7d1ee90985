#!/usr/bin/env bash
# tool.sh golangci-lint|gofumpt|versitygw: prints the path of that tool at its pinned version,
# built with this Go when it is not there. Each version has a folder of its own in the
# cache, so a new pin or a new Go never meets an old binary.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

case ${1:-} in
  golangci-lint) version=v2.15.0 package=github.com/golangci/golangci-lint/v2/cmd/golangci-lint ;;
  gofumpt) version=v0.12.0 package=mvdan.cc/gofumpt ;;
  versitygw) version=v1.8.0 package=github.com/versity/versitygw/cmd/versitygw ;; # the S3 server of the tests
  *) die "usage: tool.sh golangci-lint|gofumpt|versitygw" "" 64 ;;
esac

dir=$cache/tools/$1-$version-$(go env GOVERSION)

build() {
  [[ -x $dir/$1 ]] && return
  say "building $1 $version (once)"
  rm -rf "$dir.part"
  # Outside the module, so that its go.mod has no say in the tool's versions.
  (cd / && GOFLAGS='' GOBIN=$dir.part go install "$package@$version") >&2 ||
    die "go install $package@$version failed"
  rm -rf "$dir"
  mv "$dir.part" "$dir"
}

locked "$cache/tools/$1.lock" build "$1"
echo "$dir/$1"
