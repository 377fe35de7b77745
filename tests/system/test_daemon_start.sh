# limit: 90
# Workers that cannot start: by themselves (files), by crashing, by hanging, by being of another build. Never silence, never a hang.
. "$(dirname "$0")/daemon_lib.sh"
GOOD=$FAKE_TARGET

# ---- once: the second life serves, and a request that came meanwhile is answered
for lever in exit hang_load hang fail=device version=99; do
	for worker in target drafter; do
		case $lever,$worker in version*) continue ;; esac # lasting: below
		rm -f "$T/once"
		FAKE_TARGET=$GOOD FAKE_DRAFTER=step_us=200
		[ $worker = target ] && FAKE_TARGET=$lever,once=$T/once || FAKE_DRAFTER=$lever,once=$T/once
		start --engine.load_timeout_s=1
		raw <<-END
		greet 0
		gen tag=1 ids=300,301 max_tokens=5
		expect "tag=1 accepted"
		until "tag=1 finish reason=2"
		status
		expect "restarts_$worker=1"
		END
		stop
	done
done

# ---- slow loading is no hang: what it says counts
FAKE_TARGET=load_ms=2500 FAKE_DRAFTER=step_us=200
start --engine.load_timeout_s=1
raw <<'END'
greet 0
status
expect "state=loading"
gen tag=1 ids=300,301 max_tokens=5
expect "tag=1 accepted"
until "tag=1 finish reason=2"
status
expect "restarts_target=0"
END
stop

# ---- for good: said at once when files are to blame; those who wait are told, those who come are refused; the daemon stays
for worker in target drafter; do
	for lever in fail=bad_format fail=model_mismatch version=99; do
		FAKE_TARGET=$GOOD FAKE_DRAFTER=step_us=200
		[ $worker = target ] && FAKE_TARGET=load_ms=300,$lever || FAKE_DRAFTER=load_ms=300,$lever
		code=worker_failed
		[ $lever = fail=bad_format ] || code=model_mismatch
		start
		raw <<-END
		greet 0
		gen tag=1 ids=300 max_tokens=5
		wait_status "state=failed"
		status
		expect "$worker=failed restarts_$worker=0"
		gen tag=2 ids=300 max_tokens=5
		expect "tag=2 error code=$code text=the $worker worker cannot be had:"
		END
		stop
	done
done

# ---- by crashing each time: five times within a minute, then it is said
FAKE_TARGET=$GOOD FAKE_DRAFTER=exit
start
raw <<'END'
timeout 60000
greet 0
gen tag=1 ids=300 max_tokens=5
until "tag=1 error code=worker_failed text=the drafter worker cannot be had: it ended with exit code 7; it is tried again every 30 s"
status
expect "state=failed"
END
[ "$(grep -c 'drafter worker starts' "$LOG")" -ge 5 ] || fail "given up too early"
stop

# ---- without a drafter, by wish
FAKE_TARGET=$GOOD
start --model.drafter=none
raw <<'END'
greet 0
gen tag=1 ids=300,301 max_tokens=5
until "tag=1 finish reason=2 stop=- prompt=2 output=5 cycles=4 drafted=0"
END
stop
# ---- the lever of the real workers is handed to the first life only; a signal while loading ends everything
FAKE_TARGET=hang_load FAKE_DRAFTER=hang_load
start
raw <<'END'
greet 0
wait_status "target=loading"
END
stop INT
echo "no start goes wrong in silence"
