#!/bin/sh
# The GPU suite: operations against the CPU implementation, then their times. Exits 1 on a failure, 2 when there is no GPU.
B=${B:-build}
cd "$(dirname "$0")/../.." || exit 2
TANDEM_CUDA_MODULE=${TANDEM_CUDA_MODULE:-$B/lib/tandem-cuda.so}
export TANDEM_CUDA_MODULE
"$B/tests/ops_check" || exit $?
"$B/tests/ops_check" --time
