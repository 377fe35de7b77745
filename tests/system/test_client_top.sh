# limit: 120
# tandem top: the live screen on a terminal (keys, size, restart of the daemon, every way out), plain blocks and JSON without one.
. "$(dirname "$0")/daemon_lib.sh"
. "$(dirname "$0")/client_lib.sh"
export TERM=xterm LC_ALL=C.UTF-8
unset NO_COLOR
top() { # options -- steps
	"$TOOLS/pty_run" "$TANDEM" top -d 0.1 "$@" >"$OUT" 2>"$T/err"
	got=$?
	[ ! -s "$T/err" ] || fail "top $*: $(cat "$T/err")"
}
esc=$(printf '\033')
code 3 top
one_line "no daemon"
code 2 top -d 0.01
one_line "0.05 seconds"
code 2 top --sort size
one_line "name, running"
code 2 top now

start --engine.slots=2
"$TANDEM" status --wait 60 >/dev/null || fail "not ready"
"$TANDEM" run --no-think -n 8 "some words" >/dev/null || fail "run"

# Plain blocks: as many as were asked for, no control sequence, rates of a running request in them.
code 0 top -n 2 -d 0.2
[ "$(grep -c '^tenant' "$OUT")" = 2 ] || fail "not two blocks"
! grep -q "$esc" "$OUT" || fail "a control sequence without a terminal"
shows "ready for"
shows "^requests  slots 0/2"
shows "^cycle "
shows "^target    ready   pid"
shows "^[a-z_][a-z0-9_-]*  *0  *0  *[0-9]"
code 0 top -n 3 -d 0.1 --json
[ "$(grep -c '^{"server".*"tenants":\[{' "$OUT")" = 3 ] || fail "not three objects"

# The live screen: it draws again and again, pauses, sorts, ends; the terminal is put back.
top -- "expect:${esc}[?1049h" "expect:tenant" "expect:tenant" "send:p" "expect:paused" "send:p" "expect:ready for" "send:n" "expect:tenant" "send:q"
[ $got = 0 ] || fail "q: exit code $got"
tail -c 200 "$OUT" | grep -qF "${esc}[?1049l" || fail "the screen was not given back"
tail -c 200 "$OUT" | grep -qF "${esc}[?25h" || fail "the cursor is still hidden"
grep -qF "${esc}[7m" "$OUT" || fail "the table's head is not marked"
top -n 3 --
[ $got = 0 ] || fail "-n: exit code $got"
top -- "expect:tenant" "send:^C"
[ $got = 130 ] || fail "Ctrl-C: exit code $got"
tail -c 200 "$OUT" | grep -qF "${esc}[?1049l" || fail "Ctrl-C: the screen was not given back"
NO_COLOR=1 top -n 2 --
! grep -qF "${esc}[7m" "$OUT" || fail "NO_COLOR is not kept"
TERM=dumb top -n 2 --
! grep -q "$esc" "$OUT" || fail "control sequences on a dumb terminal"

# A narrow terminal, and a size that changes: no line is wider than the screen.
top -- "expect:tenant" "size:40x12" "expect:\e[H" "expect:requests  slots 0/2" "size:20x5" "expect:\e[H" "expect:\e[H" "expect:slots 0/2" "expect:\e[J" "send:q"
[ $got = 0 ] || fail "narrow: exit code $got"
tr '\r' '\n' <"$OUT" | sed "s/$esc\[[0-9?;]*[A-Za-z]/\n/g" | awk 'length($0) > 80 { bad = 1 } END { exit bad }' || fail "a line is wider than the terminal"
# What was drawn after the last change of size fits in it.
awk -v RS="$esc\\\\[H" 'END { n = split($0, line, "\n"); for (i = 1; i <= n; i++) { gsub(/\033\[[0-9?;]*[A-Za-z]|\r/, "", line[i]); if (length(line[i]) > 20) bad = 1 }
	if (n > 6) bad = 1; exit bad }' "$OUT" || fail "20x5: it does not fit"

# Ctrl-Z gives the terminal back, and takes it again.
top -- "expect:tenant" "send:^Z" "expect:${esc}[?1049l" "cont:" "expect:${esc}[?1049h" "expect:tenant" "send:q"
[ $got = 0 ] || fail "suspended: exit code $got"

# The daemon ends and comes back: said, and no end.
cat >"$T/again" <<END
kill -TERM $PID
while [ -e $SOCK ]; do sleep 0.02; done
END
(
	tries=0
	while [ -e "$SOCK" ] && [ $tries -lt 1000 ]; do tries=$((tries + 1)); sleep 0.02; done
	sleep 0.5
	tandemd_run --engine.slots=1 >>"$LOG" 2>&1
) &
second=$!
top -- "expect:slots 0/2" "sh:sh $T/again" "expect:no daemon, trying again" "expect:restarted" "expect:slots 0/1" "send:q"
[ $got = 0 ] || fail "restart: exit code $got"
kill -TERM "$(cat "$T/run/lock")"
wait $second
rm -f "$T/code"
PID=

# Gone for good: the last interval says so in its exit code.
start
"$TANDEM" top -n 40 -d 0.1 >"$OUT" 2>"$T/err" &
watcher=$!
tries=0
until grep -q '^tenant' "$OUT"; do
	tries=$((tries + 1))
	[ $tries -lt 200 ] || fail "no first block"
	sleep 0.02
done
stop
wait $watcher
got=$?
[ $got = 3 ] || fail "without a daemon at the end: exit code $got"
shows "^no daemon, trying again: "
