#!/bin/sh
# Runs every test in a process of its own with a time limit: unit tests (tests/unit, cmocka), then system tests (tests/system, the real
# binaries). Prints one line per test and, last, "N passed, N failed". A failing test's output follows its line. ONLY=pattern picks tests.
# Two at a time where there are two processors (JOBS=N: N), since most of a test is waiting; a system test that says "# alone" compares times and
# runs with nothing beside it.
B=${B:-build}
cd "$(dirname "$0")/.." || exit 2
if [ "$1" = --one ]; then # what xargs calls: "name seconds command", with the environment of the run
	name=$2 limit=$3
	shift 3
	out=$(mktemp)
	start=$(date +%s)
	if timeout -k 5 "$limit" "$@" >"$out" 2>&1 </dev/null; then
		echo ok >>"$RESULTS"
		printf 'ok    %-40s %4ss\n' "$name" $(($(date +%s) - start))
	else
		code=$?
		echo failed >>"$RESULTS"
		{
			printf 'FAIL  %-40s %4ss  (exit %s%s)\n' "$name" $(($(date +%s) - start)) "$code" "$([ $code = 124 ] && echo ', over its time limit')"
			sed 's/^/      | /' "$out" | tail -n 60
		} >"$out.told"
		cat "$out.told"
	fi
	rm -f "$out" "$out.told"
	exit 0
fi
ROOT=$PWD
RESULTS=$(mktemp)
export B ROOT RESULTS
export PATH="$ROOT/$B/bin:$PATH"
export OPENBLAS_NUM_THREADS=1
export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_leaks=1:abort_on_error=1}" UBSAN_OPTIONS="${UBSAN_OPTIONS:-print_stacktrace=1}"
trap 'rm -f "$RESULTS"' EXIT
[ "$(nproc)" -gt 1 ] && jobs=2 || jobs=1
: "${JOBS:=$jobs}"
# The limits are for what hangs, and written for a machine with nothing else to do.
slow=3
[ "$B" = build-san ] && slow=10
pick() { # name seconds command...
	case $1 in *${ONLY:-}*) echo "$*" ;; esac
}
unit() {
	for t in "$B"/tests/test_*; do
		[ ! -x "$t" ] || pick "unit/$(basename "$t")" $((120 * slow)) "$t"
	done
}
system() { # together, or alone
	for t in tests/system/test_*.sh; do
		[ -e "$t" ] || continue
		grep -q '^# alone' "$t" && kind=alone || kind=together
		[ $kind = "$1" ] || continue
		limit=$(sed -n 's/^# limit: \([0-9]*\).*/\1/p' "$t" | head -n 1)
		pick "system/$(basename "$t" .sh)" $((${limit:-120} * slow)) sh "$t"
	done
}
{
	unit
	system together
} | xargs -r -L 1 -P "$JOBS" sh tests/run.sh --one
system alone | xargs -r -L 1 sh tests/run.sh --one
passed=$(grep -c '^ok$' "$RESULTS")
failed=$(grep -c '^failed$' "$RESULTS")
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
