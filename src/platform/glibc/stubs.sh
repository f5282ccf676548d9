#!/usr/bin/env bash
# Writes stub libraries to link against in place of this system's glibc. They have the names and
# symbol versions of an older release and no code, so that the binaries run on systems with that
# release. Newer symbols are missing, so the link fails and names them. shims.c replaces those that
# current compilers and static libraries reference.
#   stubs.sh COMPILER VERSION DIRECTORY [FLAG...]      for example: stubs.sh cc 2.17 build/glibc
# The flags select the architecture: --target=aarch64-linux-gnu.
#
# The symbols are read from this system's libraries: glibc keeps every version that a symbol ever
# had. Of each symbol the newest version that is not newer than VERSION is used. Since 2.34 threads
# and the loader's functions are part of libc. Before, they were in separate libraries, where the
# dynamic linker of an old system must find them, so the stubs place them there.
set -euo pipefail

compiler=("$1" "${@:4}") oldest=$2 directory=$3
path_of() { realpath "$("${compiler[@]}" -print-file-name="$1")"; }

for name in libc.so.6 libm.so.6 libc_nonshared.a; do
  [[ -e $(path_of "$name") ]] ||
    { echo "stubs.sh: ${compiler[0]} does not find $name; configure with -DROCFLASH_GLIBC=none to link against this system's glibc" >&2; exit 1; }
done

mkdir -p "$directory"
cd "$directory"
loader=ld-linux-x86-64.so.2
if [[ $("${compiler[@]}" -dumpmachine) == aarch64-* ]]; then loader=ld-linux-aarch64.so.1; fi
libraries=(libc.so.6 libm.so.6 "$loader")
# From 2.34 on these two are empty.
for name in libpthread.so.0 libdl.so.2; do
  if [[ -e $(path_of "$name") ]]; then libraries+=("$name"); fi
done

# One line per symbol: library, name, version, type, size.
for library in "${libraries[@]}"; do
  LC_ALL=C readelf --wide --dyn-syms "$(path_of "$library")" | awk -v library="$library" '
    $7 != "UND" && $8 ~ /@GLIBC_[0-9.]+$/ {
      split($8, part, /@+GLIBC_/)
      name = part[1]
      # In librt, libutil and libanl before 2.34; no code here calls them.
      if (name ~ /^(timer_|shm_|mq_|aio_|lio_|getaddrinfo_a|gai_)/ || name ~ /^(openpty|forkpty|login|login_tty|logout|logwtmp)$/) next
      owner = library
      if (name ~ /^(__)?(pthread|sem)_/) owner = "libpthread.so.0"
      else if (name ~ /^dl(open|sym|vsym|close|error|addr|addr1|info|mopen)$/) owner = "libdl.so.2"
      print owner, name, part[2], $4, $3
    }'
done | awk -v oldest="$oldest" '
  # The version as a number: 2.2.5 is 2002005.
  function number(text, part) { split(text, part, "."); return part[1] * 1000000 + part[2] * 1000 + part[3] }
  number($3) <= number(oldest) && number($3) > number(best[$1 " " $2]) { best[$1 " " $2] = $3; kind[$1 " " $2] = $4 " " $5 }
  END { for (symbol in best) print symbol, best[symbol], kind[symbol] }' | LC_ALL=C sort >symbols.txt

for library in libc.so.6 libm.so.6 libpthread.so.0 libdl.so.2 "$loader"; do
  awk -v library="$library" '$1 == library {
    section = $4 == "OBJECT" ? ".bss" : $4 == "TLS" ? ".section .tbss,\"awT\",@nobits" : ".text"
    type = $4 == "OBJECT" ? "@object" : $4 == "TLS" ? "@tls_object" : "@function"
    size = type == "@function" ? 1 : $5
    printf "%s\n.globl %s\n.type %s,%s\n.size %s,%s\n%s: .zero %s\n", section, $2, $2, type, $2, size, $2, size
  } END { print ".section .note.GNU-stack,\"\",@progbits" }' symbols.txt >stub.s
  awk -v library="$library" '$1 == library { names[$3] = names[$3] " " $2 ";" }
    END { for (version in names) printf "GLIBC_%s {%s };\n", version, names[version] }' symbols.txt | LC_ALL=C sort >stub.map
  "${compiler[@]}" -shared -nostdlib -Wl,-soname,"$library" -Wl,--version-script=stub.map -Wl,-z,noexecstack stub.s -o "$library"
done
rm stub.s stub.map

# The names that -lc, -lm, -lpthread and -ldl resolve to. The static part of libc (such as atexit)
# is this system's.
echo "GROUP ( $PWD/libc.so.6 $(path_of libc_nonshared.a) AS_NEEDED ( $PWD/$loader ) )" >libc.so
ln -sf libm.so.6 libm.so
ln -sf libpthread.so.0 libpthread.so
ln -sf libdl.so.2 libdl.so
