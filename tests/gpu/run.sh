#!/bin/sh
# The GPU suite, from the tree (make check-gpu) or from a bundle ("B=. sh tests/gpu/run.sh" inside it). One line per check, last "N passed, N failed".
# Lines of figures follow the check that made them. Exits 1 on a failure, 2 where no GPU can be used.
#
#	ONLY=pattern	picks checks
#	SHARED=folder	reference/int4.json and prompts/*.json, where they are at hand; without: our own prompts alone
#	TIMES=1		the operations' times, too
#	SANITIZE=1	the operations and the tiny pair under compute-sanitizer (memcheck, racecheck), too: less than two minutes
#	LOG=file	where all output goes, too
B=${B:-build}
cd "$(dirname "$0")/../.." || exit 2
ROOT=$PWD
export B ROOT
export PATH="$ROOT/$B/bin:$PATH" OPENBLAS_NUM_THREADS=4
: "${TANDEM_CUDA_MODULE:=$ROOT/$B/lib/tandem-cuda.so}" "${SHARED:=../shared}" "${LOG:=/dev/null}"
export TANDEM_CUDA_MODULE
M=models/tiny
PAIR="--target $M/target-int4 --drafter $M/drafter-int4 --tokenizer $M/tokenizer.json"
passed=0
failed=0
out=$(mktemp)
trap 'rm -f "$out" "$out.race"' EXIT
one() { # name, seconds, pattern of the lines to show, command...
	name=$1 limit=$2 show=$3
	shift 3
	case $name in *${ONLY:-}*) ;; *) return ;; esac
	start=$(date +%s)
	if timeout -k 5 "$limit" "$@" >"$out" 2>&1 </dev/null; then
		passed=$((passed + 1))
		printf 'ok    %-44s %4ss\n' "$name" $(($(date +%s) - start))
		grep -E "$show" "$out" | sed 's/^/      | /'
	else
		code=$?
		failed=$((failed + 1))
		printf 'FAIL  %-44s %4ss  (exit %s%s)\n' "$name" $(($(date +%s) - start)) "$code" "$([ $code = 124 ] && echo ', over its time limit')"
		grep -v ' ok$' "$out" | tail -n 40 | cut -c 1-300 | sed 's/^/      | /'
	fi
	{ echo "==== $name"; cat "$out"; } >>"$LOG"
}

"$B/tests/ops_check" --only device >"$out" 2>&1
[ $? != 2 ] || { cat "$out"; exit 2; }
sed -n 's/^under test: //p' "$out"
one "operations against the CPU" 180 'lines, ' "$B/tests/ops_check"
[ -z "${TIMES:-}" ] || one "times of the operations" 180 . "$B/tests/ops_check" --time
[ -z "${TIMES:-}" ] || [ ! -e "$B/tests/dense_times" ] || one "what cuBLAS offers for prompts" 120 . "$B/tests/dense_times"

reference=tests/data/reference_int4.json
[ ! -e "$SHARED/reference/int4.json" ] || reference=$SHARED/reference/int4.json
files=
for f in shell gsm8k humaneval; do
	[ ! -e "$SHARED/prompts/$f.json" ] || files="$files $SHARED/prompts/$f.json"
done
for weights in file bf16; do
	# BF16 activations leave about 1 % on the drafter's logits: drafts by a wider margin, and how many lie between
	one "reference values, weights $weights" 120 'mean acceptance|prompts: |least margin' \
		"$B/tests/reference_check" $PAIR --device cuda --weights $weights --margin 0.05 --draft-margin 0.2 --tolerance 0.02 --acceptance 0.03 "$reference"
	one "losslessness, weights $weights" 180 'comparisons|prompts|^K=' "$B/tests/test_lossless" --device cuda --weights $weights --limit 20 $files
done
one "losslessness, activations int8" 180 'comparisons|prompts|^K=' "$B/tests/test_lossless" --device cuda --activations int8 --limit 20 $files
one "prefix cache, activations int8" 180 'checks,|earlier' "$B/tests/test_prefix" $PAIR --device cuda --activations int8 --chunk 256 --full 1 --history 3900
# On the CPU, whose activations are float32 otherwise, 0.0002 to 0.0003; weights of 4 bits make 0.012 to 0.025.
one "what activations int8 change" 180 'KL' "$B/tests/form_check" --device cuda --head rescored -- --device cuda --activations int8 --kl 0.002 --limit 20 $files
for chunk in 256 1024; do
	one "prefix cache, chunks of $chunk" 180 'checks,|earlier' "$B/tests/test_prefix" $PAIR --device cuda --chunk $chunk --full 1 --history 3900
done
for t in tests/gpu/test_*.sh; do
	limit=$(sed -n 's/^# limit: \([0-9]*\).*/\1/p' "$t" | head -n 1)
	one "$(basename "$t" .sh)" "${limit:-120}" . sh "$t"
done
sanitized() { # tool, what, seconds, command...
	what="compute-sanitizer $1, $2" tool=$1 limit=$3
	shift 3
	one "$what" "$limit" 'ERROR SUMMARY|RACECHECK SUMMARY|lines,|prompts: ' compute-sanitizer --tool "$tool" --error-exitcode 9 "$@"
}
# cuBLAS' own kernels (nvjet) order their copies in a way that racecheck does not follow, and don't run when they are left out; what it finds there is theirs.
raced() { # what, seconds, command...
	what="compute-sanitizer racecheck, $1" limit=$2
	shift 2
	one "$what" "$limit" 'RACECHECK SUMMARY|lines,|prompts: ' sh -c 'compute-sanitizer --tool racecheck "$@" >"$0" 2>&1; rc=$?; cat "$0"
		[ $rc = 0 ] && ! grep "Error: Race reported" "$0" | grep -v nvjet' "$out.race" "$@"
}
if [ -n "${SANITIZE:-}" ]; then
	# A prompt, some drafted and verified tokens: each kernel of the cycle, at the sizes of the pair.
	sanitized memcheck "operations" 60 "$B/tests/ops_check" --tiny
	for part in rows linear gdn attention draft sample; do
		raced $part 60 "$B/tests/ops_check" --tiny --only $part
	done
	set -- "$B/tests/reference_check" $PAIR --device cuda --margin 0.05 --draft-margin 0.2 --tolerance 0.02 --limit 1 --tokens 8 tests/data/reference_int4.json
	sanitized memcheck "the tiny pair" 60 "$@"
	raced "the tiny pair" 120 "$@"
fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
