#!/usr/bin/env bash
# Fuzzes every target, or one, for a number of seconds each:  scripts/fuzz.sh SECONDS [TARGET]
#
# libFuzzer needs coverage instrumentation, which stable rustc gives through code-generation flags; so no nightly
# toolchain and no cargo-fuzz. The corpus grows in fuzz/corpus and is kept between runs; findings go to fuzz/artifacts.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?"usage: scripts/fuzz.sh SECONDS [TARGET]"}
targets=${2:-"parse operations atp_parse atp_operations racks_operations panama_parse"}
host=$(rustc -vV | sed -n 's/^host: //p')

# Naming the target keeps the flags off build scripts, which must not be instrumented.
RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 --cfg fuzzing" \
  cargo build --quiet --release --manifest-path fuzz/Cargo.toml --target "$host"

# Packets of the conformance vectors are what the byte targets start from.
cargo run --quiet --package fanin-harness --bin corpus -- fuzz/corpus

for target in $targets; do
  corpus=fuzz/corpus/$target
  artifacts=fuzz/artifacts/$target/
  mkdir -p "$corpus" "$artifacts"
  binary=fuzz/target/$host/release/$target
  echo "fuzzing $target for $seconds s"
  if ! "$binary" -max_total_time="$seconds" -timeout=10 -max_len=2048 -len_control=0 -print_final_stats=1 \
      -artifact_prefix="$artifacts" "$corpus" >"fuzz/$target.log" 2>&1; then
    tail -40 "fuzz/$target.log"
    finding=$(sed -n 's/.*Test unit written to //p' "fuzz/$target.log" | tail -1)
    echo "fuzzing $target FAILED; replay the finding with: $binary ${finding:-$artifacts}"
    exit 1
  fi
  grep -E 'number_of_executed_units|average_exec_per_sec' "fuzz/$target.log"
done
