#!/usr/bin/env bash
# Finds a Rust that is new enough for the crates in rust/, and prints the environment to use:
#   eval "$(scripts/rust_env.sh)"
# If there is none, installs one with rustup into the user's cache (or ROCFLASH_RUST). Debian's
# cargo is used if it is new enough. With --check nothing is installed, and the exit status has the
# result.
set -euo pipefail
cd "$(dirname "$0")/.."

minimum=$(sed -n 's/^rust-version = "\([0-9.]*\)".*/\1/p' rust/Cargo.toml)
tested=1.95.0 # the installed version; a newer clippy may have new lints
own=${ROCFLASH_RUST:-${XDG_CACHE_HOME:-$HOME/.cache}/rocflash/rust}

# Whether the cargo in a directory is new enough and has clippy and rustfmt.
is_usable() {
  local version
  [[ -x $1/cargo ]] || return 1
  version=$("$1/cargo" --version 2>/dev/null | cut -d ' ' -f 2) || return 1
  [[ $(printf '%s\n%s\n' "$minimum" "$version" | sort -V | head -n 1) == "$minimum" ]] || return 1
  "$1/cargo" clippy --version >/dev/null 2>&1 && "$1/cargo" fmt --version >/dev/null 2>&1
}

in_path=$(command -v cargo || true)
for directory in "${in_path%/cargo}" "${CARGO_HOME:-$HOME/.cargo}/bin"; do
  if [[ -n $directory ]] && is_usable "$directory"; then
    echo "export PATH='$directory':\"\$PATH\""
    exit 0
  fi
done

export RUSTUP_HOME=$own/rustup CARGO_HOME=$own/cargo
if ! is_usable "$CARGO_HOME/bin"; then
  [[ ${1:-} == --check ]] && exit 1
  {
    echo "rust_env.sh: no cargo $minimum or newer with clippy and rustfmt; installing one with rustup into $own"
    if command -v curl >/dev/null; then
      fetch=(curl --proto '=https' --tlsv1.2 --silent --show-error --fail)
    elif command -v wget >/dev/null; then
      fetch=(wget --quiet --output-document=-)
    else
      fetch=(false)
    fi
    mkdir -p "$own"
    # shellcheck disable=SC2015 # both failures have the same message
    "${fetch[@]}" https://static.rust-lang.org/rustup/rustup-init.sh >"$own/install.sh" &&
      sh "$own/install.sh" -y --quiet --no-modify-path --profile minimal --default-toolchain "$tested" \
        --component clippy --component rustfmt && is_usable "$CARGO_HOME/bin" || {
      echo "rust_env.sh: could not install Rust. Install Rust $minimum or newer with clippy and rustfmt (https://rustup.rs),"
      echo "             or run make test RUST=0 to skip the crates"
      exit 1
    }
  } >&2
fi
echo "export RUSTUP_HOME='$RUSTUP_HOME' CARGO_HOME='$CARGO_HOME' PATH='$CARGO_HOME/bin':\"\$PATH\""
