#!/bin/sh
# Serves models/tiny on the CPU in a temporary folder, asks it one question with speculation and without, and stops the daemon again.
# DEVICE=auto|cpu|cuda and B=build folder can be set. Nothing is left behind.
DEVICE=${DEVICE:-cpu}
ROOT=$(cd "$(dirname "$0")/.." && pwd) || exit 2
[ -n "$B" ] || { [ -x "$ROOT/bin/tandemd" ] && B=. || B=build; } # in a bundle the programs lie at the top
BIN=$ROOT/$B/bin
MODELS=$ROOT/models/tiny
QUESTION=${QUESTION:-Show me examples of grep.}
T=
DAEMON=

end() {
	if [ -n "$DAEMON" ] && kill -TERM "$DAEMON" 2>/dev/null; then
		wait "$DAEMON"
	fi
	[ -z "$T" ] || rm -rf "$T"
}
die() {
	echo "demo: $1" >&2
	if [ -n "$T" ] && [ -s "$T/log" ]; then
		echo "demo: the daemon's last lines:" >&2
		tail -n 20 "$T/log" >&2
	fi
	exit 1
}

for p in tandemd tandem-target tandem-drafter tandem; do
	[ -x "$BIN/$p" ] || die "$BIN/$p is not there: run 'make' first (or 'make demo', which does)"
done
[ -r "$MODELS/target-int4/model.safetensors" ] || die "$MODELS holds no model: is this a whole checkout?"

trap end EXIT
trap 'exit 130' INT TERM HUP PIPE
T=$(mktemp -d "${TMPDIR:-/tmp}/tandem-demo.XXXXXX") || die "cannot make a temporary folder"
export TANDEM_SOCKET="$T/tandem.sock"

echo "starting tandemd with the tiny model (33M parameters, INT4) on the ${DEVICE} backend"
"$BIN/tandemd" --tandem.socket="$TANDEM_SOCKET" --tandem.runtime_dir="$T/run" --model.target="$MODELS/target-int4" \
	--model.drafter="$MODELS/drafter-int4" --engine.device="$DEVICE" 2>"$T/log" &
DAEMON=$!
"$BIN/tandem" status --wait 60 >"$T/status" 2>"$T/status.err" || die "the daemon did not become ready$(sed 's/^/: /;q' "$T/status.err")"

ask() { # name, options...
	name=$1
	shift
	"$BIN/tandem" run --greedy --no-think --max-tokens 96 --show-stats "$@" "$QUESTION" 2>"$T/$name.stats" >"$T/$name" || die "the question failed: $(cat "$T/$name.stats")"
}
echo
echo "> $QUESTION"
ask drafted
cat "$T/drafted"
sed -n 's/.*, answer \([^,]*\), .*; \([0-9]* cycles\), \(.*\); seed.*/\n  \1; \2, \3/p' "$T/drafted.stats"
ask plain --draft-tokens 0
cmp -s "$T/drafted" "$T/plain" || die "the target alone answers otherwise; that must never happen: $(cat "$T/plain")"
echo "  the target alone gives the same answer"

speed() {
	sed -n 's/.*answer [0-9]* tokens in [0-9.]* s (\([0-9.]*\)\/s).*/\1/p' "$1"
}
awk -v fast="$(speed "$T/drafted.stats")" -v plain="$(speed "$T/plain.stats")" 'BEGIN {
	if (fast <= 0 || plain <= 0) exit 1
	printf "  with speculation %.1f tokens/s, alone %.1f tokens/s: factor %.2f\n", fast, plain, fast / plain
	print "  (on a CPU checking 16 tokens costs several times one token; on a GPU it costs about the same, and the factor nears the acceptance length)"
}' || die "the client told no speed: $(cat "$T/plain.stats")"
kill -TERM "$DAEMON"
wait "$DAEMON"
code=$?
DAEMON=
[ "$code" = 0 ] || die "the daemon ended with code $code"
echo "the daemon has ended; to keep one: $B/bin/tandemd --help"
