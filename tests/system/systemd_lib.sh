# Sourced by test_systemd*.sh after daemon_lib.sh: tandemd under notify_harness, which plays the service manager.
# manage [name=value]... -- [options of tandemd]...   starts the manager; `tell` gives it a command, `see` waits for what it says.
EVENTS=$T/events
SEEN=0 # lines of EVENTS before this one are past

manage() {
	n=0
	for a in "$@"; do
		[ "$a" = -- ] && break
		n=$((n + 1))
	done
	rm -f "$T/commands"
	mkfifo "$T/commands"
	: >"$EVENTS"
	: >"$LOG"
	SEEN=0
	harness_run $n "$@" <"$T/commands" >"$EVENTS" 2>>"$LOG" 7>&- &
	PID=$!
	exec 7>"$T/commands"
	see '^state inactive'
}

# The first $1 of the rest are the manager's.
harness_run() {
	n=$1
	shift
	i=0
	while [ $i -lt "$n" ]; do # to the end of the list, in their order
		set -- "$@" "$1"
		shift
		i=$((i + 1))
	done
	shift # --
	# Now: options of tandemd, then the manager's. Turned around again.
	k=$(($# - n))
	while [ $k -gt 0 ]; do
		set -- "$@" "$1"
		shift
		k=$((k - 1))
	done
	mine=
	while [ $n -gt 0 ]; do
		mine="$mine $1"
		shift
		n=$((n - 1))
	done
	exec "$TOOLS/notify_harness" "$T" $mine -- "$BIN/tandemd" --tandem.socket="$SOCK" --tandem.runtime_dir="$T/run" \
		--model.target="${MODEL:-$ROOT/models/tiny}/target-int4" --model.drafter="${MODEL:-$ROOT/models/tiny}/drafter-int4" --engine.device=cpu \
		${WORKER:+--engine.target_worker="$WORKER" --engine.drafter_worker="$WORKER"} "$@"
}

tell() {
	echo "$*" >&7
}

# Waits for an event after the last one that was seen; LINE is it.
see() {
	tries=0
	while :; do
		at=$(tail -n +$((SEEN + 1)) "$EVENTS" | grep -n -m 1 -e "$1") && break
		tries=$((tries + 1))
		[ $tries -lt ${2:-600} ] || fail "the manager does not see '$1'; it saw: $(tail -n 12 "$EVENTS")"
		sleep 0.05
	done
	SEEN=$((SEEN + ${at%%:*}))
	LINE=${at#*:}
}

# Ready, and the same answer as all lives before gave (the first one's is the measure, in $T/answer). Whose memory was taken over: imported_target,
# imported_drafter; what to say of a failure. ANSWER: tokens; READY_TRIES: for `see`.
serves() {
	see '^say READY=1' "${READY_TRIES:-600}"
	see '^state active'
	raw <<-END
	timeout 60000
	greet 0
	gen tag=1 text="Show me examples of grep." max_tokens=${ANSWER:-24} ignore_eos=1
	until "tag=1 finish reason=2"
	total tag=1
	status
	expect "imported_target=$1"
	END
	grep -q "imported_drafter=$2" "$OUT" || fail "$3: the drafter's memory: not imported_drafter=$2"
	[ -s "$T/answer" ] || totals >"$T/answer"
	totals | cmp -s - "$T/answer" || fail "$3: another answer: $(totals)"
}

# Nothing of the kind among all events so far.
never() {
	! grep -e "$1" "$EVENTS" || fail "the manager saw '$1'"
}

# The manager ends, and with it the service.
manage_end() {
	tell quit
	wait "$PID" || fail "the manager ended with code $?"
	PID=
	exec 7>&-
	never '^BAD'
	! grep -q 'ERROR: \|runtime error' "$LOG" || fail "a sanitizer has something to say"
}
