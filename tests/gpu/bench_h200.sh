#!/bin/sh
# The figures of one large GPU in one run: drafts by load, operations, cycle, latency against BF16, load, and cycle and operations on a narrow slice; at Qwen3.5-4B shapes
# with random weights, at assumed acceptance lengths. From the tree, or from a bundle ("B=. sh tests/gpu/bench_h200.sh" inside it). The table at the end
# holds each figure against what it is to reach. Exits 1 when a measurement failed, not when a figure is missed.
#
#	OUT=folder	where bench.json, bench.html, narrow.json go (default: a temporary one)
#	RUNS=n		answers of each kind (default: 3)
#	NARROW=percent	of the multiprocessors for the slice (default: 6; 0: leave it out)
#	GROUP32=1	the cycle with groups of 32 columns, too
#	ACTIVATIONS=f	of 4-bit products: bf16 or int8 (default: the daemon's own choice)
B=${B:-build}
cd "$(dirname "$0")/../.." || exit 2
ROOT=$PWD
TANDEM=$ROOT/$B/bin/tandem
: "${TANDEM_CUDA_MODULE:=$ROOT/$B/lib/tandem-cuda.so}" "${OUT:=$(mktemp -d)}" "${RUNS:=3}" "${NARROW:=6}" "${DEVICE:=cuda}" "${MODEL:=qwen3.5-4b}" "${CONTEXT:=8512}"
[ -e "$TANDEM_CUDA_MODULE" ] || TANDEM_CUDA_MODULE=$ROOT/$B/lib/tandem/tandem-cuda.so
export TANDEM_CUDA_MODULE
bench() { # seconds, arguments
	limit=$1
	shift
	start=$(date +%s)
	timeout -k 10 "$limit" "$TANDEM" bench "$@" --tokenizer "$ROOT/models/tiny/tokenizer.json" --device "$DEVICE" --ms "${MS:-20}" \
		${ACTIVATIONS:+--activations "$ACTIVATIONS"} || echo "FAILED: tandem bench $*"
	echo "($(($(date +%s) - start)) s)"
}
widths=$OUT/widths
bench 120 --tune --model "synthetic:$MODEL" --max-clients "${CLIENTS:-8}" --context 512 --widths "$widths" | tee "$OUT/tune.txt"
bench 240 ops cycle latency load --model "synthetic:$MODEL" --context "$CONTEXT" --runs "$RUNS" --warmups 1 --requests 2 --max-clients "${CLIENTS:-8}" \
	--widths "$widths" --save "$OUT/bench.json" --html "$OUT/bench.html" | tee "$OUT/bench.txt"
[ "$NARROW" = 0 ] || bench 120 ops cycle --model "synthetic:$MODEL" --context 2560 --runs 1 --sm-share "$NARROW" --save "$OUT/narrow.json" | tee "$OUT/narrow.txt"
[ -z "${GROUP32:-}" ] || bench 120 cycle --model "synthetic:$MODEL:g32" --context 2560 --runs 2 --save "$OUT/g32.json" | tee "$OUT/g32.txt"
goals() { # of the summary in a file
	awk '
	BEGIN {
		goal["plain decoding, a step"] = "0.85 ms or less"; goal["verify with head"] = "1.0 ms or less"; goal["draft"] = "0.25 ms or less"
		goal["whole cycle"] = "1.25 ms or less"; goal["idle and"] = "5 % or less"; goal["prefill of 8192"] = "110 ms or less"
		goal["per token at length 5"] = "11 x or more"; goal["mean of the latency ratios at length 5.0"] = "9 x or more"
		goal["mean of the latency ratios at length 6.0"] = "10.5 x or more"; goal["8 clients"] = "4 x or more"
		goal["weight streaming"] = "75 % or more on a narrow slice"; goal["CPU time"] = "less than 50 us"
	}
	/^summary/ { on = 1; next }
	on && /^  / { for (g in goal) if (index($0, "  " g) == 1) $0 = sprintf("%-80s %s", $0, goal[g]); print }' "$1"
}
echo "---- $MODEL, $DEVICE: measured, and to reach"
goals "$OUT/bench.txt"
[ "$NARROW" = 0 ] || { echo "---- on $NARROW % of the multiprocessors"; goals "$OUT/narrow.txt"; }
[ -s "$OUT/bench.json" ] && ! grep -q '^FAILED' "$OUT"/*.txt
