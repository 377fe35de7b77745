#!/bin/sh
# Runs every test in a process of its own with a time limit: unit tests (tests/unit, cmocka), then system tests (tests/system, the real
# binaries). Prints one line per test and, last, "N passed, N failed". A failing test's output follows its line. ONLY=pattern picks tests.
B=${B:-build}
cd "$(dirname "$0")/.." || exit 2
ROOT=$PWD
export B ROOT
export PATH="$ROOT/$B/bin:$PATH"
export OPENBLAS_NUM_THREADS=1
export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_leaks=1:abort_on_error=1}" UBSAN_OPTIONS="${UBSAN_OPTIONS:-print_stacktrace=1}"
passed=0
failed=0
out=$(mktemp)
trap 'rm -f "$out"' EXIT
one() { # name, seconds, command...
	name=$1
	limit=$2
	shift 2
	case $name in *${ONLY:-}*) ;; *) return ;; esac
	start=$(date +%s)
	if timeout -k 5 "$limit" "$@" >"$out" 2>&1 </dev/null; then
		passed=$((passed + 1))
		printf 'ok    %-40s %4ss\n' "$name" $(($(date +%s) - start))
	else
		code=$?
		failed=$((failed + 1))
		printf 'FAIL  %-40s %4ss  (exit %s%s)\n' "$name" $(($(date +%s) - start)) "$code" "$([ $code = 124 ] && echo ', over its time limit')"
		sed 's/^/      | /' "$out" | tail -n 60
	fi
}
# The limits are for what hangs, and written for a machine with nothing else to do.
slow=3
[ "$B" = build-san ] && slow=10
for t in "$B"/tests/test_*; do
	[ -x "$t" ] && one "unit/$(basename "$t")" $((120 * slow)) "$t"
done
for t in tests/system/test_*.sh; do
	[ -e "$t" ] || continue
	limit=$(sed -n 's/^# limit: \([0-9]*\).*/\1/p' "$t" | head -n 1)
	one "system/$(basename "$t" .sh)" $((${limit:-120} * slow)) sh "$t"
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
