#!/usr/bin/env bash
# Tests the crates in rust/ against the library in build/: formatting, clippy, tests, examples,
# documentation, linking an installed library, and building the packaged crates outside the
# repository. Arguments go to `cargo test`.
#
# Compiled code is shared by all clones, in the user's cache or CARGO_TARGET_DIR. Crates are fetched
# once; after that everything runs offline. Steps whose tools are missing (Miri, the oldest Rust)
# are reported as skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
repository=$PWD

[[ -e build/CMakeCache.txt ]] || { echo "rust_tests.sh: build/ does not exist; build first" >&2; exit 2; }
environment=$(scripts/rust_env.sh)
eval "$environment"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/rocflash/cargo}
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never} CARGO_TERM_QUIET=true
rust_version() { sed -n 's/^rust-version = "\([0-9.]*\)".*/\1/p' "$1"; }

step() { echo "-- rust: $*"; }

step "build librocflash.a, librocflash.so and the command"
cmake --build build --target rocflash rocflash_static rocflash_cli | tail -n 1
# Links the built library instead of compiling it a second time.
export ROCFLASH_LIB_DIR=$repository/build/lib

cd rust
cargo fetch --locked --offline 2>/dev/null || { step "fetching crates" && cargo fetch --locked; }
export CARGO_NET_OFFLINE=true

step "format"
cargo fmt --all --check
features=(--features candle-flash-rocm/rocm)
step "clippy"
cargo clippy --locked --workspace --all-targets -- -D warnings
cargo clippy --locked --workspace "${features[@]}" --all-targets -- -D warnings
step "tests"
cargo test --locked --workspace "${features[@]}" "$@"
step "examples and benchmarks"
cargo build --locked --workspace "${features[@]}" --examples --benches
for example in rocflash/attention candle-flash-rocm/{flash_attn,llama_block,train}; do
  cargo run --locked -p "${example%/*}" --example "${example#*/}" >"$CARGO_TARGET_DIR/example.txt" ||
    { cat "$CARGO_TARGET_DIR/example.txt"; exit 1; }
done
step "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace "${features[@]}" --no-deps

# docs.rs has no C++ compiler; with a missing CMake this step fails if anything is built.
step "documentation as on docs.rs"
env -u ROCFLASH_LIB_DIR DOCS_RS=1 CMAKE=/nowhere/cmake CARGO_TARGET_DIR="$CARGO_TARGET_DIR/docs" \
  cargo doc --locked -p rocflash-sys --no-deps

step "an installed library, found by pkg-config"
if command -v pkg-config >/dev/null; then
  prefix=$CARGO_TARGET_DIR/prefix
  rm -rf "$prefix"
  cmake --install "$repository/build" --prefix "$prefix" >/dev/null
  library=$(find "$prefix" -name librocflash.so -printf '%h')
  env -u ROCFLASH_LIB_DIR PKG_CONFIG_PATH="$library/pkgconfig" LD_LIBRARY_PATH="$library" \
    CARGO_TARGET_DIR="$CARGO_TARGET_DIR/system" \
    cargo test --locked -p rocflash-sys --no-default-features --features system
else
  echo "skipped: pkg-config is not installed"
fi

step "the packaged crates, outside the repository"
"$repository/scripts/rust_package_test.sh"

# The minimum supported Rust of each crate; candle-core determines that of candle-flash-rocm.
check_with() {
  local version=$1
  shift
  step "Rust $version: $*"
  if rustup run "$version" cargo --version >/dev/null 2>&1; then
    rustup run "$version" cargo check --locked --all-targets "${@/#/--package=}"
  else
    echo "skipped: rustup toolchain install $version --profile minimal (clippy's incompatible_msrv lint has passed)"
  fi
}
check_with "$(rust_version rocflash/Cargo.toml)" rocflash-sys rocflash
check_with "$(rust_version Cargo.toml)" candle-flash-rocm

step "the index arithmetic of views under Miri"
# Miri builds its standard library once, for which it fetches crates.
if cargo +nightly miri --version >/dev/null 2>&1 && CARGO_NET_OFFLINE=false cargo +nightly miri setup; then
  cargo +nightly miri test --locked -p rocflash --lib
else
  echo "skipped: rustup toolchain install nightly --component miri, with access to crates.io the first time"
fi
