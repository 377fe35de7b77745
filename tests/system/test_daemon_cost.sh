# limit: 60
# What the daemon itself costs: CPU time per commit record, and memory that does not grow with the number of requests.
. "$(dirname "$0")/daemon_lib.sh"
export FAKE_TARGET=step_us=1000 FAKE_DRAFTER=step_us=100
start --limits.resume_memory=1M

field() { tail -n 1 "$OUT" | sed "s/.* $1=\([0-9]*\).*/\1/"; }
measure() { # requests at once
	{
		printf 'greet 0\nwait_status "state=ready"\n'
		for i in $(seq "$1"); do
			echo "gen tag=$i ids=300,301,302,303 max_tokens=2000 ignore_eos=1 draft_tokens=3 stop=\"nothing like this\""
		done
		echo 'until "finish reason=2"'
		echo "wait_status finished=$((done + $1))"
	} >"$T/script"
	raw <"$T/script"
	done=$((done + $1))
}
done=0
worst=0
for n in 1 4; do
	raw <<-'END'
	greet 0
	status
	expect "status"
	END
	cpu=$(field cpu_us) cycles=$(field cycles)
	measure $n
	per=$((($(field cpu_us) - cpu) / ($(field cycles) - cycles)))
	echo "$n at once: $per us of CPU per commit record ($(($(field cycles) - cycles)) records)"
	[ $per -le $worst ] || worst=$per
done
slow=1
[ "$B" = build-san ] && slow=10
[ $worst -lt $((50 * slow)) ] || fail "$worst us per commit record; 50 are allowed"

stop
FAKE_TARGET=step_us=0 FAKE_DRAFTER=step_us=0
start --limits.resume_memory=1M
# Memory: 2000 short requests more must not be seen.
many() {
	{
		printf 'greet 0\n'
		for i in $(seq 250); do
			echo "gen tag=1 ids=300*50 max_tokens=100 logprobs=5"
			echo 'until "tag=1 finish"'
		done
	} >"$T/script"
	raw <"$T/script"
}
many
many
before=$(awk '/VmRSS/ { print $2 }' "/proc/$PID/status")
for i in 1 2 3 4 5 6; do many; done
after=$(awk '/VmRSS/ { print $2 }' "/proc/$PID/status")
echo "memory: $before KiB after 500 requests, $after KiB after 2000"
[ "$B" = build-san ] || [ $after -lt $((before + 1024)) ] || fail "memory grows"
stop
