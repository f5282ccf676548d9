#!/usr/bin/env bash
# Finds a Rust that is new enough for the crates in rust/, and prints what to add to the environment:
#   eval "$(scripts/rust_env.sh)"
# Where there is none, it installs one by rustup, into the user's cache (ROCFLASH_RUST says where) and nowhere else. Debian's
# own cargo serves if it is new enough. With --check nothing is installed, and the exit status tells.
set -euo pipefail
cd "$(dirname "$0")/.."

minimum=$(sed -n 's/^rust-version = "\([0-9.]*\)".*/\1/p' rust/Cargo.toml)
tested=1.95.0 # what is installed; a newer clippy may know more to complain about
own=${ROCFLASH_RUST:-${XDG_CACHE_HOME:-$HOME/.cache}/rocflash/rust}

# Whether the cargo in a folder is new enough, and has clippy and rustfmt beside it.
suits() {
  local version
  [[ -x $1/cargo ]] || return 1
  version=$("$1/cargo" --version 2>/dev/null | cut -d ' ' -f 2) || return 1
  [[ $(printf '%s\n%s\n' "$minimum" "$version" | sort -V | head -n 1) == "$minimum" ]] || return 1
  "$1/cargo" clippy --version >/dev/null 2>&1 && "$1/cargo" fmt --version >/dev/null 2>&1
}

in_path=$(command -v cargo || true)
for folder in "${in_path%/cargo}" "${CARGO_HOME:-$HOME/.cargo}/bin"; do
  if [[ -n $folder ]] && suits "$folder"; then
    echo "export PATH='$folder':\"\$PATH\""
    exit 0
  fi
done

export RUSTUP_HOME=$own/rustup CARGO_HOME=$own/cargo
if ! suits "$CARGO_HOME/bin"; then
  [[ ${1:-} == --check ]] && exit 1
  {
    echo "rust_env.sh: no cargo $minimum or newer with clippy and rustfmt; installing one by rustup into $own"
    if command -v curl >/dev/null; then
      fetch=(curl --proto '=https' --tlsv1.2 --silent --show-error --fail)
    elif command -v wget >/dev/null; then
      fetch=(wget --quiet --output-document=-)
    else
      fetch=(false)
    fi
    mkdir -p "$own"
    # shellcheck disable=SC2015 # either part may fail, and the message is the same
    "${fetch[@]}" https://static.rust-lang.org/rustup/rustup-init.sh >"$own/install.sh" &&
      sh "$own/install.sh" -y --quiet --no-modify-path --profile minimal --default-toolchain "$tested" \
        --component clippy --component rustfmt && suits "$CARGO_HOME/bin" || {
      echo "rust_env.sh: that failed. Install Rust $minimum or newer with clippy and rustfmt (https://rustup.rs),"
      echo "             or run make test RUST=0 to leave the crates out"
      exit 1
    }
  } >&2
fi
echo "export RUSTUP_HOME='$RUSTUP_HOME' CARGO_HOME='$CARGO_HOME' PATH='$CARGO_HOME/bin':\"\$PATH\""
