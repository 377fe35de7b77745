# limit: 120
# alone
# What the daemon itself costs: CPU time per commit record, and memory that does not grow with the number of requests.
# The CPU time is held against that of a bare loop which does the same with the kernel (wakeups.c), measured just before and after: how fast and
# how busy the machine is cancels out. What is dear in the daemon is the kernel's part, so the factors below are small.
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
# Three measurements with $1 requests at once; the middle one must stay below $2 tenths of the bare loop.
cost() {
	: >"$T/tenths"
	for try in 1 2 3; do
		bare=$("$TOOLS/wakeups" 400 1000) || fail "wakeups"
		raw <<-'END'
		greet 0
		status
		expect "status"
		END
		cpu=$(field cpu_us) cycles=$(field cycles)
		measure "$1"
		cpu=$(($(field cpu_us) - cpu)) cycles=$(($(field cycles) - cycles))
		bare=$(((bare + $("$TOOLS/wakeups" 400 1000)) / 2))
		tenths=$((cpu * 10000 / cycles / bare))
		echo "$1 at once: $((cpu * 1000 / cycles)) ns of CPU per commit record ($cycles records), a bare round $bare ns: $tenths tenths of it"
		echo $tenths >>"$T/tenths"
	done
	middle=$(sort -n "$T/tenths" | sed -n 2p)
	slow=1
	[ "$B" = build-san ] && slow=10
	[ "$middle" -lt $(($2 * slow)) ] || fail "with $1 requests at once a commit record costs $middle tenths of a bare round; $(($2 * slow)) are allowed"
}
cost 1 45
cost 4 20

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
