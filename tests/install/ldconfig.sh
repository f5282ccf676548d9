#!/bin/sh
# In place of ldconfig: a system with one directory of libraries, which has none of rocflash's.
case $1 in
  -p) echo "	libc.so.6 (libc6,x86-64) => /lib/libc.so.6" ;;
  *) echo "/usr/local/lib: (from /etc/ld.so.conf:1)" ;;
esac
