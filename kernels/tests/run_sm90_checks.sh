#!/bin/sh
# The sm90 engine's checks, and its times beside two plain cuBLAS products (this machine's own python3, with torch).
# About five minutes of one GPU. Exit status 1 if anything failed.
#   run_sm90_checks.sh build FOLDER            compiles into FOLDER; needs nvcc and no GPU
#   run_sm90_checks.sh measure FOLDER [OUT]    runs what is there; logs go to OUT, by default those of one H200
#   run_sm90_checks.sh [OUT]                   both, in a folder of its own
set -u
here=$(cd "$(dirname "$0")" && pwd)

build() {
    mkdir -p "$1"
    flags="-O3 -std=c++20 -Xcompiler -Wall,-Wextra,-Werror -gencode=arch=compute_90a,code=sm_90a -cudart static"
    flags="$flags -I$here/../include"
    shared="-Xcompiler -fPIC -shared"
    nvcc $flags -o "$1/sm90_probe" "$here/sm90_probe.cu" || return 1
    nvcc $flags -o "$1/sm90_checks" "$here/sm90_checks.cu" || return 1
    nvcc $flags $shared -o "$1/engine.so" "$here/sm90_library.cu" || return 1
    nvcc $flags $shared -DSCALING_CONTRASTS_STAGES -o "$1/stages.so" "$here/sm90_library.cu"
}

measure() {
    out=${2:-$here/../../results/measured/h200-x1/checks}
    mkdir -p "$out"
    status=0
    timeout 20 "$1/sm90_probe" >"$out/sm90_cluster_probe.log" 2>&1
    timeout 120 "$1/sm90_checks" all >"$out/sm90_checks.log" 2>&1 || status=1
    timeout 30 "$1/sm90_checks" variant fp16=1 >"$out/sm90_fp16_checks.log" 2>&1 || status=1
    : >"$out/sm90_kinds_checks.log" # the kernels for many rows and for few, at sizes of either
    for kind in small_items=0 small_items=1,one_launch=0 small_items=1,one_launch=1; do
        echo "== $kind" >>"$out/sm90_kinds_checks.log"
        timeout -k 5 15 "$1/sm90_checks" variant $kind >>"$out/sm90_kinds_checks.log" 2>&1 || status=1
    done
    tail -n 1 "$out/sm90_checks.log" "$out/sm90_fp16_checks.log"
    grep passed "$out/sm90_kinds_checks.log"
    if command -v compute-sanitizer >/dev/null; then
        for tool in memcheck initcheck synccheck racecheck; do
            cases=tiny
            [ $tool = racecheck ] && cases=race # which looks at each access to shared memory
            timeout 120 compute-sanitizer --tool $tool --error-exitcode 3 "$1/sm90_checks" $cases >"$out/sm90_$tool.log" 2>&1 ||
                status=1
            tail -n 1 "$out/sm90_$tool.log"
        done
    fi
    timeout 120 python3 "$here/sm90_bench.py" "$1/engine.so" --rows 1024 4096 16384 32768 65536 \
        --config default fp16=1 forward >"$out/sm90_bench.log" 2>&1 || status=1
    timeout -k 5 60 python3 "$here/sm90_bench.py" "$1/engine.so" --rows 512 1024 2048 3072 4096 5120 8192 \
        --config default large:small_items=0 small:small_items=1,one_launch=0 one_launch:small_items=1,one_launch=1 \
        >"$out/sm90_kinds_bench.log" 2>&1 || status=1
    timeout 60 python3 "$here/sm90_bench.py" "$1/engine.so" --rows 1024 16384 --t 100 \
        --config default fp16=1 forward >"$out/sm90_bench_trained.log" 2>&1 || status=1
    timeout 60 python3 "$here/sm90_bench.py" "$1/stages.so" --rows 1024 16384 --rounds 1 >"$out/sm90_stages.log" 2>&1 ||
        status=1
    grep -h R= "$out/sm90_bench.log" "$out/sm90_kinds_bench.log" "$out/sm90_bench_trained.log"
    return $status
}

case ${1:-} in
build) [ $# -eq 2 ] && build "$2" ;;
measure) [ $# -ge 2 ] && measure "$2" "${3:-}" ;;
*)
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    build "$work" && measure "$work" "${1:-}"
    ;;
esac
