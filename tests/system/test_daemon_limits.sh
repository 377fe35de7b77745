# limit: 60
# A full disk for the log, and no descriptors left: the daemon goes on, says so when it can, and does not spin.
. "$(dirname "$0")/daemon_lib.sh"

told() { # what, how often: on stderr, of the log file
	[ "$(grep -c "the log file $1 takes no lines: No space left on device; they are only here" "$LOG")" = "$2" ] || fail "not told $2 times that $1 is full"
}

for option in --help --settings --version --check; do
	tandemd_run $option >/dev/full 2>"$T/err" && fail "tandemd $option: a full disk is not success"
	grep -q "tandemd: can't write to stdout: No space left on device" "$T/err" || fail "tandemd $option: $(cat "$T/err")"
done

# ---- the log's disk is full; SIGHUP makes it anew elsewhere
start --tandem.log_file=/dev/full
raw <<'END'
greet 0
gen tag=1 ids=300,301 max_tokens=50
until "finish reason=2"
END
stop
told /dev/full 1
mkdir "$T/logs"
start --tandem.log_file="$T/logs/tandemd.log"
mv "$T/logs/tandemd.log" "$T/logs/old.log"
kill -HUP "$PID"
tries=0
until grep -q 'the log was reopened' "$T/logs/tandemd.log" 2>/dev/null; do
	tries=$((tries + 1))
	[ $tries -lt 1200 ] || fail "SIGHUP does not reopen the log"
	sleep 0.05
done
stop
# ---- a log that became full while running
TANDEM_FAULT=log.full:3 start --tandem.log_file="$T/logs/tandemd.log"
raw <<'END'
greet 0
gen tag=1 ids=300,301 max_tokens=50
until "finish reason=2"
END
stop
told "$T/logs/tandemd.log" 1
grep -q 'log lines were lost here: No space left' "$T/logs/tandemd.log" || fail "lost lines are not told"

# ---- too few descriptors are refused in one line; with as many as that line asks for it serves, and says how many connections it takes
for n in 5 6 9 14 17 18 19 20 23 26 30 33 34 35 36 39; do
	code=0
	(
		ulimit -n "$n"
		tandemd_run
	) >"$T/few" 2>&1 || code=$?
	[ $code = 2 ] || fail "with $n descriptors it ended with code $code: $(tail -n 3 "$T/few")"
	[ "$(grep -c . "$T/few")" = 1 ] || fail "with $n descriptors it says: $(cat "$T/few")"
done
need=$(sed -n 's/.*too low: \([0-9]*\) are needed.*/\1/p' "$T/few")
[ "${need:-0}" -ge 40 ] || fail "it does not say what it needs: $(cat "$T/few")"
(
	ulimit -n "$need"
	start
	echo "$PID" >"$T/pid"
) || exit 1
PID=$(cat "$T/pid")
grep -q 'leaves room for 1 connections' "$LOG" || fail "it does not say that it takes few connections"
raw <<'END'
greet 0
connect 1
expect "error code=limit text=tandemd has no file descriptor left"
eof
use 0
wait_status "state=ready"
kill target 9
sleep 50
gen tag=1 ids=300,301 max_tokens=20
until "finish reason=2"
END
stop
# ---- files that may not grow: the log loses lines, nothing else; a limit that leaves no room for the shared memory is told in one line
code=0
(
	ulimit -f 1
	tandemd_run --tandem.log_file="$T/small" >"$T/few" 2>&1
) || code=$?
[ $code = 2 ] || fail "ulimit -f 1: it ended with code $code: $(tail -n 3 "$T/few")"
[ "$(wc -l <"$T/few")" = 1 ] || fail "ulimit -f 1: it says $(cat "$T/few")"
truncate -s 200000000 "$T/big" # a sparse file counts, too: the log is at its limit from the start
(
	ulimit -f $((200000000 / 512))
	start --tandem.log_file="$T/big"
	echo "$PID" >"$T/pid"
) || exit 1
PID=$(cat "$T/pid")
raw <<'END'
greet 0
gen tag=1 ids=300,301 max_tokens=50
until "finish reason=2"
END
stop
rm -f "$T/big"

# ---- few descriptors; the crowd is told, or has to wait, and those who are in are served
(
	ulimit -n $((need + 8))
	start --tandem.handshake_s=30
	echo "$PID" >"$T/pid"
) || exit 1
PID=$(cat "$T/pid")
raw <<'END'
greet 0
gen tag=1 ids=300,301 max_tokens=4000 ignore_eos=1 draft_tokens=0
expect "accepted"
crowd 60
connect 1
expect "error code=limit text=tandemd has no file descriptor left"
eof
use 0
status tag=7
until "tag=7 status"
END
cpu() { awk '{ print $14 + $15 }' "/proc/$1/stat"; }
# the crowd is gone with its process; a new one sits there, and the daemon must not turn without end
"$TOOLS/rawclient" "$SOCK" >/dev/null 2>&1 <<'END' &
crowd 60
sleep 4000
END
CROWD=$!
sleep 0.5
# a loop that does spin is the measure, whatever share of the machine there is
sh -c 'while :; do :; done' &
SPIN=$!
before=$(cpu "$PID")
sleep 1.5
used=$(($(cpu "$PID") - before)) spun=$(cpu $SPIN)
kill $SPIN
[ $((used * 4)) -lt "$spun" ] || fail "the daemon used $used ticks of 10 ms while a loop used $spun: it spins"
wait $CROWD
raw <<'END'
greet 0
gen tag=1 ids=300,301 max_tokens=5
until "finish reason=2"
END
# a worker's death in the middle of a crowd: its successor gets the descriptors that it needs
raw <<'END'
greet 0
connect 1
crowd 60
use 0
status
expect "status"
kill target 9
kill drafter 9
sleep 100
timeout 20000
wait_status "state=ready"
gen tag=1 ids=300,301 max_tokens=5
until "finish reason=2"
status
expect "restarts_target=1 "
END
stop
# ---- the lever: accept says EMFILE although there are some
TANDEM_FAULT=daemon.accept.emfile start
raw <<'END'
connect 0
expect "error code=limit"
eof
greet 0
END
stop
echo "short of everything, and still there"
