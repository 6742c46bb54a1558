#!/bin/sh
# Every way of running the article's ladder on sm90: checked against float64, then timed, all interleaved in one
# process, beside two plain cuBLAS products; and what operands shared over clusters give when nothing else runs. At most
# four minutes.
#   run_sm90_variants.sh build FOLDER            compiles into FOLDER; needs nvcc and no GPU
#   run_sm90_variants.sh measure FOLDER [OUT]    runs what is there; logs go to OUT, by default those of one H200
set -u
here=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 2 ] || { sed -n 5,6p "$0"; exit 2; }
folder=$2
case $1 in
build)
    mkdir -p "$folder"
    flags="-O3 -std=c++20 -Xcompiler -Wall,-Wextra,-Werror -gencode=arch=compute_90a,code=sm_90a -cudart static"
    flags="$flags -I$here/../include"
    shared="-Xcompiler -fPIC -shared"
    nvcc $flags -o "$folder/sm90_probe" "$here/sm90_probe.cu" || exit 1
    nvcc $flags -o "$folder/sm90_checks" "$here/sm90_checks.cu" || exit 1
    nvcc $flags $shared -o "$folder/engine.so" "$here/sm90_library.cu" || exit 1
    nvcc $flags $shared -DSCALING_CONTRASTS_STAGES -o "$folder/stages.so" "$here/sm90_library.cu" || exit 1
    ;;
measure)
    out=${3:-$here/../../results/measured/h200-x1/checks}
    mkdir -p "$out"
    timeout 20 "$folder/sm90_probe" >"$out/sm90_cluster_probe.log" 2>&1
    # clusters of 1, 2 and 4 CTAs; a taker, which takes the next item after the one before is loaded (1) or ahead (2);
    # fp16 rows and weights; gradient sums cut into so many items
    configs=
    status=0
    : >"$out/sm90_variants_checks.log"
    for variant in "1 0 0 1" "1 1 0 1" "1 2 0 1" "2 1 0 1" "2 2 0 1" "4 1 0 1" "4 2 0 1" "1 0 1 1" "2 1 1 1" \
        "1 1 0 2" "1 1 0 4" "2 1 0 4"; do
        # a process each: one that fails must not hide the others, and is not timed
        if timeout 30 "$folder/sm90_checks" variant $variant >>"$out/sm90_variants_checks.log" 2>&1; then
            configs="$configs 0,0,0,0,$(echo "$variant" | tr ' ' ',')"
            case $variant in "2 2 0 1" | "4 2 0 1") configs="$configs 1,6,4,1,$(echo "$variant" | tr ' ' ',')" ;; esac
        else
            status=1
            echo "cluster, taker, fp16, cut $variant: failed"
        fi
    done
    timeout 80 python3 "$here/sm90_bench.py" "$folder/engine.so" --rows 1024 4096 16384 32768 --t 10 100 \
        --config $configs >"$out/sm90_variants_bench.log" 2>&1 || status=1
    timeout 40 python3 "$here/sm90_bench.py" "$folder/stages.so" --rows 1024 16384 --rounds 1 --config $configs \
        >"$out/sm90_variants_stages.log" 2>&1 || status=1
    cat "$out/sm90_cluster_probe.log"
    grep R= "$out/sm90_variants_bench.log"
    exit $status
    ;;
*)
    sed -n 5,6p "$0"
    exit 2
    ;;
esac
