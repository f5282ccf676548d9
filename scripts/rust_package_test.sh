#!/usr/bin/env bash
# Packages the crates, unpacks them far from the repository, and builds a program on them that carries the library inside, compiled
# from the sources in the package. Repeated without changes it does nothing. rust_tests.sh sets the environment.
set -euo pipefail
cd "$(dirname "$0")/../rust"

target=${CARGO_TARGET_DIR:?rust_tests.sh sets it}
place=$target/packaged
unset ROCFLASH_LIB_DIR
# Until 1.90, cargo could not package crates that need each other.
have=$(cargo --version | cut -d ' ' -f 2)
if [[ $(printf '1.90\n%s\n' "$have" | sort -V | head -n 1) != 1.90 ]]; then
  echo "skipped: cargo $have cannot package a workspace; 1.90 can"
  exit 0
fi
cargo package --locked --workspace --no-verify --allow-dirty
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
contents=$(for crate in rocflash-sys rocflash; do tar -xOzf "$target/package/$crate-$version.crate"; done | sha256sum)
if [[ -e $place/.tested && $(cat "$place/.tested") == "$contents" ]]; then
  echo "the packages are those that were tested before"
  exit 0
fi

rm -rf "$place/crates" "$place/program"
mkdir -p "$place/crates" "$place/program/src"
for crate in rocflash-sys rocflash candle-flash-rocm; do
  # Packages carry a date of long ago, by which cargo and ninja would think that nothing has changed.
  tar --touch -xzf "$target/package/$crate-$version.crate" -C "$place/crates"
  for file in LICENSE-MIT LICENSE-APACHE README.md CHANGELOG.md; do
    [[ -f $place/crates/$crate-$version/$file ]] || { echo "$crate lacks $file" >&2; exit 1; }
  done
done
cp rocflash/examples/attention.rs "$place/program/src/main.rs"
cp Cargo.lock "$place/program/"
cat >"$place/program/Cargo.toml" <<EOF
[package]
name = "program"
version = "0.0.0"
edition = "2021"
[dependencies]
rocflash = "$version"
[patch.crates-io]
rocflash = { path = "../crates/rocflash-$version" }
rocflash-sys = { path = "../crates/rocflash-sys-$version" }
[workspace]
EOF
cd "$place/program"
# Without CMake the build ends with a message that says what to do.
if CMAKE=/nowhere/cmake CARGO_TARGET_DIR=$place/target cargo build 2>message.txt; then
  echo "built without CMake?" >&2
  exit 1
fi
grep -qF 'cannot be run. Building the bundled library needs CMake' message.txt || {
  cat message.txt >&2
  exit 1
}
# One architecture shows that the kernels' sources are there; all of them take minutes. Without clang 22 there are none.
archs=none
command -v clang++-22 >/dev/null && command -v ld.lld-22 >/dev/null && archs=gfx1100
ROCFLASH_CMAKE_ARGS=-DROCFLASH_GPU_ARCHS=$archs CARGO_TARGET_DIR=$place/target cargo build
output=$(env -i "$place/target/debug/program")
[[ $output == *"last query:  126.200"* ]] || { echo "$output" >&2; exit 1; }
echo "$contents" >"$place/.tested"
