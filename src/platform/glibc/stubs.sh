#!/usr/bin/env bash
# Writes libraries to link against in place of this system's glibc. They have the names and symbol versions that glibc had at an older
# release, and no code, so that what is linked runs on systems that old: a symbol that is younger is not there, and the link fails by its
# name. shims.c has what compilers and static libraries of today refer to nevertheless.
#   stubs.sh COMPILER VERSION FOLDER      such as: stubs.sh cc 2.17 build/glibc
#
# This system's own libraries say what there was: glibc keeps every version that a symbol ever had. Of each symbol the youngest version
# that is old enough is taken. Since 2.34 threads and the loader's functions are part of libc; before that they had libraries of their
# own, where the dynamic linker of an old system has to find them, so they are put back there.
set -euo pipefail

compiler=$1 oldest=$2 folder=$3
place() { realpath "$("$compiler" -print-file-name="$1")"; }

for name in libc.so.6 libm.so.6 libc_nonshared.a; do
  [[ -e $(place "$name") ]] ||
    { echo "stubs.sh: $compiler does not tell where $name is; configure with -DROCFLASH_GLIBC=none to use this system's as it is" >&2; exit 1; }
done

mkdir -p "$folder"
cd "$folder"
libraries=(libc.so.6 libm.so.6 ld-linux-x86-64.so.2)
# Before 2.34 these two are libraries with functions, afterwards empty.
for name in libpthread.so.0 libdl.so.2; do
  if [[ -e $(place "$name") ]]; then libraries+=("$name"); fi
done

# A line per symbol: library, name, version, type, size.
for library in "${libraries[@]}"; do
  LC_ALL=C readelf --wide --dyn-syms "$(place "$library")" | awk -v library="$library" '
    $7 != "UND" && $8 ~ /@GLIBC_[0-9.]+$/ {
      split($8, part, /@+GLIBC_/)
      name = part[1]
      # In librt, libutil and libanl until 2.34: nothing here calls them.
      if (name ~ /^(timer_|shm_|mq_|aio_|lio_|getaddrinfo_a|gai_)/ || name ~ /^(openpty|forkpty|login|login_tty|logout|logwtmp)$/) next
      home = library
      if (name ~ /^(__)?(pthread|sem)_/) home = "libpthread.so.0"
      else if (name ~ /^dl(open|sym|vsym|close|error|addr|addr1|info|mopen)$/) home = "libdl.so.2"
      print home, name, part[2], $4, $3
    }'
done | awk -v oldest="$oldest" '
  # A version as one number: 2.2.5 is 2002005.
  function number(text, part) { split(text, part, "."); return part[1] * 1000000 + part[2] * 1000 + part[3] }
  number($3) <= number(oldest) && number($3) > number(best[$1 " " $2]) { best[$1 " " $2] = $3; kind[$1 " " $2] = $4 " " $5 }
  END { for (symbol in best) print symbol, best[symbol], kind[symbol] }' | LC_ALL=C sort >symbols.txt

for library in libc.so.6 libm.so.6 libpthread.so.0 libdl.so.2 ld-linux-x86-64.so.2; do
  awk -v library="$library" '$1 == library {
    section = $4 == "OBJECT" ? ".bss" : $4 == "TLS" ? ".section .tbss,\"awT\",@nobits" : ".text"
    type = $4 == "OBJECT" ? "@object" : $4 == "TLS" ? "@tls_object" : "@function"
    size = type == "@function" ? 1 : $5
    printf "%s\n.globl %s\n.type %s,%s\n.size %s,%s\n%s: .zero %s\n", section, $2, $2, type, $2, size, $2, size
  } END { print ".section .note.GNU-stack,\"\",@progbits" }' symbols.txt >stub.s
  awk -v library="$library" '$1 == library { names[$3] = names[$3] " " $2 ";" }
    END { for (version in names) printf "GLIBC_%s {%s };\n", version, names[version] }' symbols.txt | LC_ALL=C sort >stub.map
  "$compiler" -shared -nostdlib -Wl,-soname,"$library" -Wl,--version-script=stub.map -Wl,-z,noexecstack stub.s -o "$library"
done
rm stub.s stub.map

# What -lc, -lm, -lpthread and -ldl find. The static part of libc (atexit and its like) is this system's.
echo "GROUP ( $PWD/libc.so.6 $(place libc_nonshared.a) AS_NEEDED ( $PWD/ld-linux-x86-64.so.2 ) )" >libc.so
ln -sf libm.so.6 libm.so
ln -sf libpthread.so.0 libpthread.so
ln -sf libdl.so.2 libdl.so
