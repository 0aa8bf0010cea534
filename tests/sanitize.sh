#!/bin/sh
# Compares every operation of every instruction set with portable C under the address and undefined-behaviour
# sanitizers. Packed data may start at any byte, so alignment is left out.
set -eu
cd "$(dirname "$0")/.."
build=build/sanitize
mkdir -p "$build"
${CC:-cc} -std=c11 -O1 -g -Wall -Wextra -ffp-contract=off -fno-math-errno -fno-trapping-math -pthread \
    -fsanitize=address,undefined -fno-sanitize=alignment -fno-sanitize-recover=all -Icsrc \
    csrc/*.c csrc/x86/*.c csrc/arm/*.c tests/csrc/check_isa.c -o "$build/check_isa" -lm
"$build/check_isa"
