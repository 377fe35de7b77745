# limit: 60
# Whoever comes while the model loads sees how far it is: a bar on a terminal, a line per stage elsewhere, nothing with --quiet or JSON; status --wait.
. "$(dirname "$0")/daemon_lib.sh"
. "$(dirname "$0")/client_lib.sh"
export TERM=xterm
unset NO_COLOR
esc=$(printf '\033')
loading() { # milliseconds
	FAKE_TARGET="load_ms=$1" start
	"$TANDEM" status >"$OUT" && shows "loading for"
}
# The bar grows, goes away before the answer, and the answer is whole.
loading 3000
"$TOOLS/pty_run" "$TANDEM" run "some words" -n 4 -- "expect:target loading: pretending [" "expect:#" "expect: %" "expect:\r\e[K" >"$OUT" 2>"$T/err" ||
	fail "the bar: $(cat "$T/err")"
shows "target loading: pretending \[[#.]*\] *[0-9]* %"
[ -n "$(sed "s/.*$esc\[K//" "$OUT" | tr -d '\r\n')" ] || fail "no answer after the bar"
stop

# Elsewhere a line for each thing that is waited for, not more; none with --quiet and in JSON.
loading 3000
"$TANDEM" run -n 4 "some words" >"$T/answer" 2>"$T/err1" &
"$TANDEM" run -n 4 -q "some words" >"$T/answer2" 2>"$T/err2" &
"$TANDEM" run -n 4 --json "some words" >"$T/answer3" 2>"$T/err3" &
printf 'some words\n' | "$TANDEM" chat -n 4 >"$T/answer4" 2>"$T/err4" &
"$TANDEM" status --wait >"$T/status" 2>"$T/err5" || fail "status --wait: exit code $?"
grep -q "ready for" "$T/status" || fail "status --wait without a number did not wait: $(cat "$T/status")"
tries=0
while [ "$(cat "$T/answer" "$T/answer2" "$T/answer3" "$T/answer4" | wc -l)" -lt 4 ]; do
	tries=$((tries + 1))
	[ $tries -lt 400 ] || fail "not every answer came"
	sleep 0.05
done
for i in 1 4; do
	grep -q "waiting for the model, target loading: pretending" "$T/err$i" || fail "nothing was told: $(cat "$T/err$i")"
	[ "$(wc -l <"$T/err$i")" -le 5 ] || fail "too much was told: $(cat "$T/err$i")"
	[ "$(sort "$T/err$i" | uniq -d | wc -l)" = 0 ] || fail "something was told twice: $(cat "$T/err$i")"
	! grep -q "$esc" "$T/err$i" || fail "a control sequence without a terminal"
done
for i in 2 3 5; do
	[ ! -s "$T/err$i" ] || fail "not quiet: $(cat "$T/err$i")"
done
stop

# Ctrl-C while it loads stops the request and takes the bar away.
loading 20000
"$TOOLS/pty_run" "$TANDEM" run "some words" -- "expect:pretending [" "send:^C" >"$OUT" 2>"$T/err"
[ $? = 130 ] || fail "Ctrl-C while it loads: exit code $?; $(cat "$T/err")"
# Not in time, and a number that is none.
code 4 status --wait 0.2
code 2 status --wait=soon
code 2 status --wait soon
kill -9 "$PID" # it would wait for its worker to load
wait
rm -f "$T/code"
PID=
code 3 status --wait 0.2
