#!/bin/bash
# Checks and times the GPU engines on the GPU that is here, and keeps the logs.
#   run_cuda_checks.sh BUILD OUT [--quick]
# BUILD holds the programs cuda_checks and scaling_contrasts (built with SC_CUDA=ON; cuda_checks by its own target).
# Everything has a time limit. The sanitizers are used where they are installed. Exit status 1 if a check failed.
set -u
build=$1 out=$2 quick=${3:-}
mkdir -p "$out"
status=0

nvidia-smi --query-gpu=name,driver_version,clocks.sm,power.draw,temperature.gpu --format=csv | tee "$out/device.txt"
timeout 120 "$build/cuda_checks" >"$out/sm80_checks.log" 2>&1 || status=1
grep FAIL "$out/sm80_checks.log"
tail -1 "$out/sm80_checks.log"
timeout 120 "$build/cuda_checks" --engine sm90 >"$out/sm90_groups_checks.log" 2>&1 || [ $? -eq 77 ] || status=1
grep FAIL "$out/sm90_groups_checks.log"
tail -1 "$out/sm90_groups_checks.log"

step() { timeout 60 "$build/scaling_contrasts" --device cuda --engine sm80 "$@" 2>&1 | tail -1; }
{
    for rows in 1024 4096 16384 32768; do step --rows $rows; done
    step --rows 16384 --scale 100
    step --rows 16384 --options graph=false
    step --rows 16384 --gradient-dtype float32
    step --rows 16384 --loss two_set_sigmoid
    step --rows 16384 --loss two_set_sigmoid --dims 768 --prefixes 768
    step --rows 16384 --loss info_nce
    step --rows 16384 --labels equal
    step --rows 131072
} | tee "$out/sm80_times.log"
for form in nt_xent sup_con; do
    for engine in sm80 sm90; do
        timeout 60 "$build/scaling_contrasts" --device cuda --engine $engine --loss one_set_info_nce --form $form --rows 16384 2>&1 | tail -1
    done
done | tee "$out/one_set_info_nce_times.log"

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -1)
if [ -n "$sanitizer" ] && [ "$quick" != --quick ]; then
    for tool in memcheck racecheck initcheck synccheck; do
        timeout 120 "$sanitizer" --tool $tool --error-exitcode 3 --print-limit 20 "$build/cuda_checks" --only 'R=129' >"$out/sm80_$tool.log" 2>&1 || status=1
        echo "$tool: $(grep SUMMARY "$out/sm80_$tool.log" || echo "no summary: its time limit ended it")"
    done
fi
exit $status
