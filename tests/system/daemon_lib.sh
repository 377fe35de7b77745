# Sourced by test_daemon_*.sh: starts tandemd with fake workers in a folder of its own, talks to it by rawclient, and cleans up.
# Variables: those of tree_lib.sh, SOCK, OUT (what the last raw printed), LOG.
. "${ROOT:=$(cd "$(dirname "$0")/../.." && pwd)}/tests/system/tree_lib.sh"
BIN=$ROOT/$B/bin
TOOLS=$ROOT/$B/tests
SOCK=$T/s
OUT=$T/out
LOG=$T/log
WORKER=$TOOLS/fake_worker
FAKE_TARGET=${FAKE_TARGET:-step_us=1000}
FAKE_DRAFTER=${FAKE_DRAFTER:-step_us=200}
export FAKE_TARGET FAKE_DRAFTER

fail() {
	echo "FAIL: $*"
	[ ! -s "$OUT" ] || { echo "--- the client's last lines:"; tail -n 20 "$OUT" | cut -c 1-400; }
	[ ! -s "$LOG" ] || { echo "--- the daemon's last lines:"; tail -n 30 "$LOG"; }
	exit 1
}

# The command line with everything that a test does not care about; later options win.
tandemd_run() {
	"$BIN/tandemd" --tandem.socket="$SOCK" --tandem.runtime_dir="$T/run" --model.target="$ROOT/models/tiny/target-int4" \
		--model.drafter="$ROOT/models/tiny/drafter-int4" --engine.target_worker="$WORKER" --engine.drafter_worker="$WORKER" --engine.device=cpu "$@"
}

# In the background, until it serves. Options as for tandemd.
start() {
	: >"$LOG"
	(tandemd_run --tandem.log_level=debug "$@" >>"$LOG" 2>&1; echo $? >"$T/code") &
	tries=0
	until grep -q "socket $SOCK\$" "$LOG"; do
		tries=$((tries + 1))
		[ $tries -lt 1200 ] || fail "tandemd does not open its socket"
		[ ! -s "$T/code" ] || fail "tandemd ended with code $(cat "$T/code")"
		sleep 0.05
	done
	PID=$(cat "$T/run/lock")
}

# A script for rawclient on standard input; fails when an expectation in it fails.
raw() {
	"$TOOLS/rawclient" "$SOCK" >"$OUT" 2>"$T/err" || fail "$(cat "$T/err")"
}

# The same beside the test: `go_on` waits until it printed something, `answered` until it has ended well.
client() {
	rm -f "$OUT"
	cat >"$T/script"
	"$TOOLS/rawclient" "$SOCK" <"$T/script" >"$OUT" 2>"$T/err" &
	CLIENT=$!
}
go_on() {
	tries=0
	until grep -q "$1" "$OUT" 2>/dev/null; do
		tries=$((tries + 1))
		[ $tries -lt 1200 ] || fail "the client does not see '$1': $(cat "$T/err")"
		sleep 0.02
	done
}
answered() {
	wait "$CLIENT" || fail "$(cat "$T/err")"
}

# The end by a signal: exit code 0, nothing left behind.
stop() {
	kill "-${1:-TERM}" "$PID" || fail "tandemd is not there any more"
	ended
}
ended() { # waits for the end of one that was told to
	tries=0
	while [ ! -s "$T/code" ]; do
		tries=$((tries + 1))
		[ $tries -lt 1200 ] || fail "tandemd does not end"
		sleep 0.05
	done
	[ "$(cat "$T/code")" = 0 ] || fail "tandemd ended with code $(cat "$T/code")"
	rm -f "$T/code"
	PID=
	[ ! -e "$SOCK" ] || fail "the socket file was left behind"
	[ -z "$(find "$T/run" -name '*.ipc')" ] || fail "a control socket was left behind"
	! grep -q 'ERROR: \|runtime error' "$LOG" || fail "a sanitizer has something to say"
}

# What a request gave in all (`total` of the last raw).
totals() {
	grep '^total ' "$OUT"
}
