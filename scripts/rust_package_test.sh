#!/usr/bin/env bash
# Packages the crates, unpacks them outside the repository, and builds a program that links the
# library compiled from the packaged sources. Skipped if the packages have not changed since the
# last run. rust_tests.sh sets the environment.
set -euo pipefail
cd "$(dirname "$0")/../rust"
root=${PWD%/rust}

target=${CARGO_TARGET_DIR:?rust_tests.sh sets it}
work=$target/packaged
unset ROCFLASH_LIB_DIR
# Until 1.90, cargo could not package crates that depend on each other.
have=$(cargo --version | cut -d ' ' -f 2)
if [[ $(printf '1.90\n%s\n' "$have" | sort -V | head -n 1) != 1.90 ]]; then
  echo "skipped: cargo $have cannot package a workspace; 1.90 can"
  exit 0
fi
cargo package --locked --workspace --no-verify --allow-dirty
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
contents=$(for crate in rocflash-sys rocflash; do tar -xOzf "$target/package/$crate-$version.crate"; done | sha256sum)
if [[ -e $work/.tested && $(cat "$work/.tested") == "$contents" ]]; then
  echo "the packages have not changed since the last run"
  exit 0
fi

rm -rf "$work/crates" "$work/program"
mkdir -p "$work/crates" "$work/program/src"
for crate in rocflash-sys rocflash candle-flash-rocm; do
  # Packaged files have an old date, which would make cargo and ninja skip the build.
  tar --touch -xzf "$target/package/$crate-$version.crate" -C "$work/crates"
  for file in LICENSE-MIT LICENSE-APACHE README.md CHANGELOG.md; do
    [[ -f $work/crates/$crate-$version/$file ]] || { echo "$crate lacks $file" >&2; exit 1; }
  done
done
cp rocflash/examples/attention.rs "$work/program/src/main.rs"
cp Cargo.lock "$work/program/"
cat >"$work/program/Cargo.toml" <<EOF
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
cd "$work/program"
# Without CMake the build stops with a message.
if CMAKE=/nowhere/cmake CARGO_TARGET_DIR=$work/target cargo build 2>message.txt; then
  echo "rust_package_test.sh: the build succeeded without CMake" >&2
  exit 1
fi
grep -qF 'Building the bundled library needs CMake' message.txt || {
  cat message.txt >&2
  exit 1
}
# One architecture tests that the kernel sources are packaged; all take minutes. GPU kernels need
# clang 22.
archs=none
sh "$root/kernels/build/llvm.sh" >/dev/null && archs=gfx1100
ROCFLASH_CMAKE_ARGS=-DROCFLASH_GPU_ARCHS=$archs CARGO_TARGET_DIR=$work/target cargo build
output=$(env -i "$work/target/debug/program")
[[ $output == *"last query:  126.200"* ]] || { echo "$output" >&2; exit 1; }
# Without a compiler of GPU kernels the build stops, too: a library for CPUs only must be requested.
# The options of the build before must not count.
if ROCFLASH_KERNEL_COMPILER=/nowhere/clang++ CARGO_TARGET_DIR=$work/target cargo build 2>message.txt; then
  echo "rust_package_test.sh: the build succeeded without kernels" >&2
  exit 1
fi
grep -qE 'GPU kernels need clang 22' message.txt || {
  cat message.txt >&2
  exit 1
}
echo "$contents" >"$work/.tested"
