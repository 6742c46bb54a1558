#!/bin/sh
# Builds and runs the sm90 engine's checks with this machine's own nvcc, and times it with its own python3 (torch).
#   run_sm90_checks.sh [OUT]     logs go to OUT, by default results/measured/h200-x1/checks
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/../../results/measured/h200-x1/checks}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
flags="-O3 -std=c++20 -Xcompiler -Wall,-Wextra,-Werror -gencode=arch=compute_90a,code=sm_90a -cudart static -I$here/../include"
nvcc $flags -o "$work/sm90_checks" "$here/sm90_checks.cu" || exit 1
nvcc $flags -Xcompiler -fPIC -shared -DSCALING_CONTRASTS_STAGES -o "$work/stages.so" "$here/sm90_library.cu" || exit 1
nvcc $flags -Xcompiler -fPIC -shared -o "$work/engine.so" "$here/sm90_library.cu" || exit 1
timeout 120 "$work/sm90_checks" all >"$out/sm90_checks.log" 2>&1
status=$?
tail -n 1 "$out/sm90_checks.log"
if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck initcheck; do
        timeout 120 compute-sanitizer --tool $tool "$work/sm90_checks" tiny >"$out/sm90_$tool.log" 2>&1
        tail -n 1 "$out/sm90_$tool.log"
    done
fi
timeout 120 python3 "$here/sm90_bench.py" "$work/engine.so" --rows 1024 4096 16384 32768 65536 >"$out/sm90_bench.log" 2>&1
timeout 60 python3 "$here/sm90_bench.py" "$work/stages.so" --rounds 1 >"$out/sm90_stages.log" 2>&1
cat "$out/sm90_bench.log"
exit $status
