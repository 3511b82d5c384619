#!/bin/sh
# Called by cargo in place of the compiler for crates of this workspace (RUSTC_WORKSPACE_WRAPPER). Libraries
# are compiled so that libFuzzer sees which branches an input takes and what it is compared with; an overflow
# panics. Everything here works with a stable compiler. Build scripts and preloaded libraries have no fuzzer
# to report to.
compiler=$1
shift
case " $* " in
*" --crate-type lib "*) ;;
*) exec "$compiler" "$@" ;;
esac
exec "$compiler" "$@" \
    -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Copt-level=2 -Cdebug-assertions=yes -Coverflow-checks=yes
