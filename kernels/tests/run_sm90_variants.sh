#!/bin/sh
# Ways of running one_set on sm90, named below: each checked against float64 in a process of its own, then those that
# passed timed in one process, interleaved, beside two plain cuBLAS products. About two minutes of one GPU.
#   run_sm90_variants.sh build FOLDER            compiles into FOLDER; needs nvcc and no GPU
#   run_sm90_variants.sh measure FOLDER [OUT]    runs what is there; logs go to OUT, by default FOLDER
set -u
here=$(cd "$(dirname "$0")" && pwd)

# NAME TUNING (sm90_tuning.cuh), a line each. The first is what the others are compared with.
variants() {
    cat <<END
default default
ring6 wide=1,ring=6,lag=4,interleave=1
corrected corrected=1
one_launch one_launch=1
small small_items=1
small_one_launch small_items=1,one_launch=1
pairs cluster=pairs
gradient_pairs cluster=gradient_pairs
score_pairs cluster=score_pairs
squares cluster=squares
gradient_squares cluster=gradient_squares
pairs_ring6 cluster=pairs,wide=1,ring=6,lag=4,interleave=1
plain_order wide=1,ring=5,lag=3,interleave=0
gradient_pairs_plain_order cluster=gradient_pairs,wide=1,ring=5,lag=3,interleave=0
END
}

build() {
    mkdir -p "$1"
    flags="-O3 -std=c++20 -Xcompiler -Wall,-Wextra,-Werror -gencode=arch=compute_90a,code=sm_90a -cudart static"
    flags="$flags -I$here/../include -DSCALING_CONTRASTS_SM90_VARIANTS"
    shared="-Xcompiler -fPIC -shared"
    nvcc $flags -o "$1/sm90_checks" "$here/sm90_checks.cu" || return 1
    nvcc $flags $shared -o "$1/engine.so" "$here/sm90_library.cu" || return 1
    nvcc $flags $shared -DSCALING_CONTRASTS_STAGES -o "$1/stages.so" "$here/sm90_library.cu"
}

measure() {
    out=${2:-$1}
    mkdir -p "$out"
    status=0
    variants >"$out/variants.txt"
    : >"$out/sm90_variants_checks.log"
    passed=
    while read -r name tuning; do
        echo "== $name: $tuning" >>"$out/sm90_variants_checks.log"
        # one that fails must not hide the others, and is not timed
        if timeout -k 5 15 "$1/sm90_checks" variant "$tuning" >>"$out/sm90_variants_checks.log" 2>&1; then
            passed="$passed $name:$tuning"
        else
            status=1
            echo "$name: failed"
        fi
    done <"$out/variants.txt"
    timeout -k 5 70 python3 "$here/sm90_bench.py" "$1/engine.so" --rows 16384 1024 4096 32768 --config $passed \
        >"$out/sm90_variants_bench.log" 2>&1 || status=1
    timeout -k 5 30 python3 "$here/sm90_bench.py" "$1/engine.so" --rows 1024 16384 --t 100 --rounds 2 --config $passed \
        >"$out/sm90_variants_bench_trained.log" 2>&1 || status=1
    timeout -k 5 30 python3 "$here/sm90_bench.py" "$1/stages.so" --rows 16384 1024 --rounds 1 --config $passed \
        >"$out/sm90_variants_stages.log" 2>&1 || status=1
    grep -h R= "$out/sm90_variants_bench.log" "$out/sm90_variants_bench_trained.log"
    return $status
}

case ${1:-} in
build) [ $# -eq 2 ] && build "$2" ;;
measure) [ $# -ge 2 ] && measure "$2" "${3:-}" ;;
*)
    sed -n 4,5p "$0"
    exit 2
    ;;
esac
