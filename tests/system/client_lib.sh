# Sourced by test_client_*.sh after daemon_lib.sh: the command `tandem` against a daemon with the real workers and the tiny model.
TANDEM=$BIN/tandem
export TANDEM_SOCKET="$SOCK"
unset XDG_RUNTIME_DIR
real() {
	start --engine.target_worker="$BIN/tandem-target" --engine.drafter_worker="$BIN/tandem-drafter" --engine.threads=1 --engine.context=512 "$@"
	"$TANDEM" status --wait 60 >"$OUT" 2>"$T/err" || fail "the daemon isn't ready: $(cat "$T/err")"
}

# code WANTED COMMAND...: runs tandem, output in $OUT, errors in $T/err.
code() {
	want=$1
	shift
	"$TANDEM" "$@" >"$OUT" 2>"$T/err" </dev/null
	got=$?
	[ $got = "$want" ] || fail "tandem $*: exit code $got and not $want; it said: $(cat "$T/err")"
}

# Exactly one line on stderr, with this text in it.
one_line() {
	[ "$(wc -l <"$T/err")" = 1 ] || fail "not one line: $(cat "$T/err")"
	grep -q -- "$1" "$T/err" || fail "no '$1' in: $(cat "$T/err")"
}

shows() {
	grep -q -- "$1" "$OUT" || fail "no '$1' in the output"
}
