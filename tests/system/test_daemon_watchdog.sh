# limit: 120
# A worker that is stopped (SIGSTOP) is replaced, in whatever phase that happens, and the other one is not; slow ones are left alone.
. "$(dirname "$0")/daemon_lib.sh"
answer() { # $1 = milliseconds until the signal, $2 = worker, '' for none, $3 = text that the last status holds, $4 = tokens
	[ -n "$2" ] && lines="use 1
	wait_status \"state=ready\"
	sleep $1
	kill $2 19" || lines=
	raw <<-END
	greet 1
	greet 0
	timeout 60000
	gen tag=1 ids=300,301,302,303 max_tokens=${4:-12} ignore_eos=1 draft_tokens=1
	gen tag=2 ids=400,401,402 max_tokens=${4:-12} ignore_eos=1 draft_tokens=1
	until "delta"
	$lines
	use 0
	until "tag=2 finish reason=2"
	total tag=1
	total tag=2
	use 1
	wait_status "state=ready slots=4 used=0"
	END
	[ "$(totals | grep -c " n=${4:-12} gap=0 ")" = 2 ] || fail "$2 stopped after $1 ms: $(totals)"
	tail -n 1 "$OUT" | grep -q "$3" || fail "$2 stopped after $1 ms: wanted $3, got $(tail -n 1 "$OUT")"
}
# Steps below the watchdog's time in which a target would wait for nearly all of it, and longer ones together.
FAKE_TARGET=step_us=600000 FAKE_DRAFTER=step_us=700000
start --engine.watchdog_s=1
answer 0 '' 'restarts_target=0 .*restarts_drafter=0 ' 4
stop

# The drafter's turn is most of the time: the signal meets a target that waits.
FAKE_TARGET=step_us=2000 FAKE_DRAFTER=step_us=100000
start --engine.watchdog_s=1
n=0
for ms in 0 50; do
	n=$((n + 1))
	answer $ms target "restarts_target=$n .*restarts_drafter=0 "
done
stop
# The target's turn is; then both alike.
for steps in 100000:2000 20000:20000; do
	FAKE_TARGET=step_us=${steps%:*} FAKE_DRAFTER=step_us=${steps#*:}
	start --engine.watchdog_s=1
	answer 10 target 'restarts_target=1 .*restarts_drafter=0 '
	answer 25 drafter 'restarts_target=1 .*restarts_drafter=1 '
	stop
done

# The real ones.
WORKER=$BIN/tandem-target
start --engine.drafter_worker="$BIN/tandem-drafter" --engine.context=256 --engine.watchdog_s=2
for ms in 0 13; do
	for worker in target drafter; do
		raw <<-END
		greet 1
		greet 0
		timeout 60000
		gen tag=1 ids=300,301,302,303 max_tokens=150 ignore_eos=1
		until "delta"
		use 1
		wait_status "state=ready"
		sleep $ms
		kill $worker 19
		use 0
		until "tag=1 finish reason=2 stop=- prompt=4 output=150"
		use 1
		wait_status "state=ready slots=4 used=0"
		END
	done
done
stop
echo "whoever stops is replaced"
