#!/usr/bin/env bash
# completion.sh PROGRAM COMPLETION PAGE: what bash completes, and what the manual page describes.
set -euo pipefail
program=$1 page=$3
# shellcheck source=/dev/null
source "$2"

complete_words() { # the completions of the last of these words
  COMP_WORDS=("$program" "$@") COMP_CWORD=$# COMPREPLY=()
  _rocflash
  printf '%s\n' "${COMPREPLY[@]}"
}
fail() {
  echo "$*" >&2
  exit 1
}

commands=$(complete_words "")
for command in info verify bench kernels explain doctor help version; do
  grep -qx "$command" <<<"$commands" || fail "no completion of $command; found: $commands"
  grep -qE "^\.B.* $command\b|^\.B rocflash $command" "$page" || fail "$page does not describe $command"
done
[[ $(complete_words ver | sort | xargs) == "verify version" ]] || fail "ver: $(complete_words ver)"
[[ $(complete_words verify --fil) == --filter ]] || fail "verify --fil: $(complete_words verify --fil)"
complete_words bench --device | grep -qx -- --device || fail "bench --device"
complete_words bench --device s | grep -q gfx942 || fail "no device after --device"
