#!/bin/sh
# Compiles csrc for 64-bit Arm and compares every operation with portable C under qemu-user, for processors from plain
# NEON to bf16. Debian: apt install qemu-user gcc-aarch64-linux-gnu. On an Arm machine it runs without either.
set -eu
cd "$(dirname "$0")/.."
build=build/neon
mkdir -p "$build"
if [ "$(uname -m)" = aarch64 ]; then
    compiler=${CC:-cc} runs=native
else
    compiler=${CC:-aarch64-linux-gnu-gcc} runs="cortex-a53 neoverse-n1 max"
    for program in "$compiler" qemu-aarch64; do
        command -v "$program" > /dev/null || { echo "neon.sh: $program is missing" >&2; exit 2; }
    done
fi
"$compiler" -std=c11 -O3 -g -Wall -Wextra -Werror -ffp-contract=off -fno-math-errno -fno-trapping-math -pthread \
    -Icsrc csrc/*.c csrc/arm/*.c tests/csrc/check_isa.c -o "$build/check_isa" -lm
for cpu in $runs; do
    echo "== $cpu"
    if [ "$cpu" = native ]; then "$build/check_isa"; else qemu-aarch64 -cpu "$cpu" -L /usr/aarch64-linux-gnu "$build/check_isa"; fi
done
