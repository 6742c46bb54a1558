#!/bin/sh
# Builds and runs the checks of the sm90 engine's losses over two sets with this machine's own nvcc, and times them beside their peers with its
# own python3 (torch, siglip-kernel, open_clip_torch).
#   run_two_set_checks.sh [OUT]     logs go to OUT, by default results/measured/h200-x1/checks
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/../../results/measured/h200-x1/checks}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
flags="-O3 -std=c++20 --expt-relaxed-constexpr -Xcompiler -Wall,-Wextra,-Werror -gencode=arch=compute_90a,code=sm_90a -cudart static -I$here/../include"
nvcc $flags -o "$work/two_set_checks" "$here/two_set_checks.cu" || exit 1
nvcc $flags -Xcompiler -fPIC -shared -o "$work/engine.so" "$here/two_set_library.cu" || exit 1
timeout 120 "$work/two_set_checks" all >"$out/two_set_checks.log" 2>&1
status=$?
tail -n 1 "$out/two_set_checks.log"
if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck initcheck synccheck racecheck; do
        timeout 120 compute-sanitizer --tool $tool "$work/two_set_checks" tiny >"$out/two_set_$tool.log" 2>&1
        tail -n 1 "$out/two_set_$tool.log"
    done
fi
timeout 120 python3 "$here/two_set_bench.py" "$work/engine.so" --case two_set_sigmoid,65536,768,1 --peers siglip_kernel products >"$out/two_set_bench.log" 2>&1
timeout 180 python3 "$here/two_set_bench.py" "$work/engine.so" --case info_nce,16384,1024,5 info_nce,16384,768,1 --peers open_clip_clip >"$out/info_nce_bench.log" 2>&1
cat "$out/two_set_bench.log" "$out/info_nce_bench.log"
exit $status
