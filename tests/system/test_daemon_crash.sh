# limit: 150
# Workers that die, hang or lie: the streams go on and are, to the token, what they are without trouble.
. "$(dirname "$0")/daemon_lib.sh"
START='--engine.watchdog_s=1 --engine.load_timeout_s=1 --engine.slots=2'

# Three answers over two slots, on one connection; $1 = script lines in the middle.
three() {
	raw <<-END
	greet 1
	greet 0
	gen tag=1 text="naïve € alpha beta gamma " max_tokens=120 ignore_eos=1 stop="nowhere"
	gen tag=2 ids=300,301,302,303,304,305,306 max_tokens=100 ignore_eos=1 temperature=1 seed=5 logprobs=1
	gen tag=3 ids=400,401*700,402 max_tokens=80 ignore_eos=1 draft_tokens=3
	$1
	use 0
	timeout 60000
	until "tag=3 finish reason=2"
	total tag=1
	total tag=2
	total tag=3
	use 1
	wait_status "state=ready slots=2 used=0 queued=0"
	END
}
check() {
	totals | cmp -s - "$T/good" || fail "$1: another answer: $(totals | diff - "$T/good")"
	[ "$(totals | grep -c ' gap=0 ')" = 3 ] || fail "$1: a gap"
}
restarts() { # expected text in the last status
	tail -n 1 "$OUT" | grep -q "$1" || fail "$2: wanted $1, got $(tail -n 1 "$OUT")"
}

FAKE_TARGET=step_us=3000 FAKE_DRAFTER=step_us=500
start $START
three 'until "tag=2 delta"'
totals >"$T/good"
[ "$(wc -l <"$T/good")" = 3 ] || fail "no reference"

# ---- kill -9, by either name, idle, in prefill, while decoding, twice
for worker in target drafter; do
	raw <<-END
	greet 0
	wait_status "target=ready"
	kill $worker 9
	sleep 50
	wait_status "state=ready"
	END
	three 'use 1'
	check "$worker killed when idle"
	three "use 1
	wait_status \"target=ready\"
	kill $worker 9
	sleep 30"
	check "$worker killed in prefill"
	three "until \"tag=1 delta position=1 \"
	use 1
	wait_status \"target=ready\"
	kill $worker 9
	sleep 150
	wait_status \"state=ready\"
	kill $worker 9
	sleep 10"
	check "$worker killed while decoding, twice"
done
# ---- both at once
three "until \"tag=1 delta position=1 \"
	use 1
	wait_status \"drafter=ready\"
	kill drafter 9
	kill target 9
	sleep 20"
check "both killed"
restarts 'imported_target=1' "the successor takes over the arena"
restarts 'imported_drafter=1' "the successor takes over the arena"
# ---- the runtime folder is removed meanwhile: it is made and locked again
rm -rf "$T/run"
three "until \"tag=1 delta position=1 \"
	use 1
	wait_status \"target=ready\"
	kill target 9
	sleep 50"
check "runtime folder removed"
[ "$(cat "$T/run/lock")" = "$PID" ] || fail "the runtime folder is not locked again"
grep -q 'it is there again' "$LOG" || fail "the removed folder is not told"
# ---- a worker that is stopped while idle does not take its work: the watchdog sees it
raw <<'END'
greet 0
status
expect "status"
kill target 19
END
three 'use 1'
check "target stopped"
grep -q 'target worker is gone: it has had work and made no progress for 1 s' "$LOG" || fail "the watchdog does not say why"
stop

# ---- crashes and hangs at a step, once; the right worker is replaced
for lever in crash_at=4 crash_at=9 hang_at=7; do
	for worker in target drafter; do
		rm -f "$T/once"
		FAKE_TARGET=step_us=3000 FAKE_DRAFTER=step_us=500
		case $worker in
		target) FAKE_TARGET=$FAKE_TARGET,$lever,once=$T/once other=drafter ;;
		drafter) FAKE_DRAFTER=$FAKE_DRAFTER,$lever,once=$T/once other=target ;;
		esac
		start $START
		three 'use 1'
		check "$worker: $lever"
		restarts "restarts_$worker=1" "$worker: $lever"
		restarts "restarts_$other=0" "$worker: $lever"
		stop
	done
done

# ---- a target that breaks the rules is replaced, and nothing of what it said wrongly is seen
FAKE_DRAFTER=step_us=500
for bad in slot epoch run count position token missing kind head done; do
	rm -f "$T/once"
	FAKE_TARGET=step_us=3000,bad=$bad,once=$T/once
	start $START
	three 'use 1'
	check "bad $bad"
	restarts 'restarts_target=1' "bad $bad"
	stop
done
# a request that the target refuses fails; the target stays
FAKE_TARGET=step_us=3000,bad=refuse
start $START
raw <<'END'
greet 0
gen tag=1 ids=300,301 max_tokens=100 draft_tokens=0
until "tag=1 error code=internal text=the target refused the request"
status
expect "state=ready slots=2 used=0"
status
expect "restarts_target=0"
END
stop

# ---- a target that does not take over its arena: the drafter, who reads it, starts again too
FAKE_TARGET=step_us=3000,forget
start $START
three "until \"tag=1 delta position=1 \"
	use 1
	wait_status \"drafter=ready\"
	kill target 9
	sleep 50"
check "arena not taken over"
restarts 'restarts_drafter=1' "arena not taken over"
restarts 'imported_target=0' "arena not taken over"
stop

# ---- a request that kills its worker each time is found out and given up; those beside it go on, suspects like it
FAKE_TARGET=step_us=1000,poison=999
start $START
raw <<'END'
timeout 60000
greet 0
gen tag=1 ids=300,301 max_tokens=50 draft_tokens=0
gen tag=2 ids=999,300 max_tokens=50
gen tag=3 ids=302,303 max_tokens=50
until "tag=2 error code=worker_failed text=a worker died 4 times in a row while this request ran, the last 2 times alone"
status tag=9
until "tag=9 status"
use 0
total tag=1
gen tag=4 ids=302,303 max_tokens=50
until "tag=4 finish reason=2"
total tag=3
END
[ "$(totals | grep -c ' n=50 gap=0 ')" = 2 ] || fail "the others suffered: $(totals)"
stop

# ---- workers killed from outside again and again, before anybody got a token: nobody is at fault, nobody is lost
FAKE_TARGET=step_us=150000 FAKE_DRAFTER=step_us=500
start --engine.slots=8
{
	echo 'greet 1'
	echo 'greet 0'
	echo 'timeout 60000'
	for i in 1 2 3 4 5 6 7 8; do echo "gen tag=$i ids=30$i,300*299 max_tokens=2 draft_tokens=0"; done
	echo 'use 1'
	for i in 1 2 3 4 5 6; do
		echo 'wait_status "state=ready"'
		echo 'sleep 100'
		echo 'kill target 9'
		echo "wait_status restarts_target=$i"
	done
	echo 'wait_status "finished=8 cancelled=0 failed=0"'
} >"$T/script"
raw <"$T/script"
stop
echo "the same answers whatever happens to the workers"
