# limit: 150
# The daemon's side of a GPU, with workers and an MPS daemon that only pretend: the exchange handle, who dies with whom, MPS in all its moods, the way
# back to the CPU, and what the workers print.
. "$(dirname "$0")/daemon_lib.sh"
BASE_TARGET=step_us=2000
BASE_DRAFTER=step_us=300
FAKE_TARGET=$BASE_TARGET FAKE_DRAFTER=$BASE_DRAFTER
MPS=$T/mps/nvidia-cuda-mps-control
mkdir "$T/mps"
GPU='--engine.device=cuda --engine.slots=2 --engine.watchdog_s=2'
unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_ACTIVE_THREAD_PERCENTAGE

# An MPS daemon: $1 = what it does before the socket is there, $2 = afterwards. Its "server" is a child, as the real one's.
mps_make() {
	cat >"$MPS" <<-END
	#!/bin/sh
	[ "\$1" = -f ] || exit 9
	[ -d "\$CUDA_MPS_PIPE_DIRECTORY" ] && [ -d "\$CUDA_MPS_LOG_DIRECTORY" ] || exit 8
	echo "\$\$" >>"$T/mps/pids"
	$1
	: >"\$CUDA_MPS_PIPE_DIRECTORY/control"
	$2
	sleep 1000 &
	echo "\$!" >>"$T/mps/pids"
	trap "kill \$!; exit 0" TERM
	wait
	END
	chmod +x "$MPS"
	: >"$T/mps/pids"
}
mps_gone() { # none of them lives
	tries=0
	while read -r pid; do
		while kill -0 "$pid" 2>/dev/null && [ "$(sed 's/.*) //' "/proc/$pid/stat" | cut -c 1)" != Z ]; do
			tries=$((tries + 1))
			[ $tries -lt 400 ] || fail "$1: process $pid was left behind"
			sleep 0.05
		done
	done <"$T/mps/pids"
	[ ! -e "$T/run/mps" ] || fail "$1: the folder of the sockets was left behind"
}
waits() { # text, seconds: until the log has it
	tries=0
	until grep -q "$1" "$LOG"; do
		tries=$((tries + 1))
		[ $tries -lt $(($2 * 200)) ] || fail "the log does not say: $1"
		sleep 0.05
	done
}
one() { # an answer of $1 tokens, lines after its first delta in $2, then expectations of the status in $3...
	n=$1 middle=$2
	shift 2
	{
		printf 'timeout 60000\ngreet 1\ngreet 0\n'
		printf 'gen tag=1 ids=300,301,302,303,304 max_tokens=%s ignore_eos=1\nuntil "tag=1 delta"\n' "$n"
		printf '%s\nuse 0\nuntil "tag=1 finish reason=2"\ntotal tag=1\nuse 1\nwait_status "state=ready"\n' "$middle"
		for e; do
			printf 'status\nexpect "%s"\n' "$e"
		done
	} >"$T/script"
	raw <"$T/script"
	[ "$(totals | grep -c "n=$n gap=0 ")" = 1 ] || fail "the answer suffered: $(totals)"
	totals >"$T/this"
	[ -s "$T/good.$n" ] || cp "$T/this" "$T/good.$n"
	cmp -s "$T/good.$n" "$T/this" || fail "another answer: $(cat "$T/this")"
}
kill_one() {
	printf 'use 1\nwait_status "%s=ready"\nkill %s 9\nsleep 50' "$1" "$1"
}

# ---- the reference is the CPU's; it shares host memory
start --engine.slots=2
one 80 '' 'sharing=\"host memory\"'
stop

# ---- the handle; a target's death is the drafter's, but no failure of its; a drafter dies alone
start $GPU --engine.mps=off
one 80 '' 'restarts_target=0' 'restarts_drafter=0' 'sharing=\"time slices: engine.mps = off\"'
one 80 "$(kill_one target)" 'restarts_target=1' 'restarts_drafter=1' 'imported_target=1' 'imported_drafter=1'
! grep -q 'drafter worker is gone' "$LOG" || fail "the drafter's end counts as a failure"
one 80 "$(kill_one drafter)" 'restarts_target=1' 'restarts_drafter=2' 'imported_drafter=1'
one 80 "$(kill_one target)
$(kill_one target)" 'restarts_target=3' 'restarts_drafter=4'
one 80 "use 1
wait_status \"drafter=ready\"
kill drafter 9
kill target 9
sleep 30" 'restarts_target=4'
stop
# a fault of the GPU, without MPS, is one worker's
FAKE_DRAFTER=$BASE_DRAFTER,fault_at=5,once=$T/once1
start $GPU --engine.mps=off
one 80 '' 'restarts_target=0' 'restarts_drafter=1'
stop
FAKE_DRAFTER=$BASE_DRAFTER
# Ready without the handle is no Ready
FAKE_TARGET=$BASE_TARGET,no_handle,once=$T/once2
start $GPU --engine.mps=off
one 80 '' 'restarts_target=1'
grep -q 'it says Ready without the handle of the exchange region' "$LOG" || fail "a target without a handle passes"
FAKE_TARGET=$BASE_TARGET
stop

# ---- MPS: up before the workers, who are told of it; gone at the end
mps_make : :
FAKE_TARGET=$BASE_TARGET,print=3 FAKE_DRAFTER=$BASE_DRAFTER,print=1
start $GPU --engine.mps=on --engine.mps_control="$MPS" --engine.mps_active_thread_percentage=60 --tandem.log_file="$T/file"
one 80 '' 'sharing=\"MPS, each worker with 60 % of the GPU'\''s threads\"'
[ "$(stat -c %a "$T/run/mps")" = 700 ] || fail "the folder of the sockets is open to others"
grep -q " warn  target: MPS folder: $(realpath "$T/run")/mps, share: 60" "$LOG" || fail "the target is not told of MPS"
grep -q " warn  drafter: MPS folder: $(realpath "$T/run")/mps, share: 60" "$LOG" || fail "the drafter is not told of MPS"
[ "$(grep -c ' warn  target: line [123] of 3$' "$T/file")" = 3 ] || fail "what a worker prints is not in the log file"
stop
mps_gone "a regular end"
# found in PATH; a fault of either worker is both workers'; kill -9 is not
FAKE_TARGET=$BASE_TARGET
for who in target drafter; do
	rm -f "$T/once3"
	mps_make : :
	FAKE_TARGET=$BASE_TARGET FAKE_DRAFTER=$BASE_DRAFTER
	[ $who = target ] && FAKE_TARGET=$BASE_TARGET,fault_at=5,once=$T/once3 || FAKE_DRAFTER=$BASE_DRAFTER,fault_at=5,once=$T/once3
	PATH=$T/mps:$PATH start $GPU
	one 80 '' 'restarts_target=1' 'restarts_drafter=1' 'sharing=\"MPS\"'
	one 80 "$(kill_one drafter)" 'restarts_target=1' 'restarts_drafter=2'
	stop
	mps_gone "after a fault"
done
FAKE_TARGET=$BASE_TARGET FAKE_DRAFTER=$BASE_DRAFTER
# it dies: it is started again and the workers with it; again and again: without
mps_make : :
PATH=$T/mps:$PATH start $GPU
one 80 '' 'restarts_target=0'
(sleep 0.3; kill -9 "$(head -n 1 "$T/mps/pids")") &
one 3000 ''
wait $!
waits 'MPS is gone' 5
one 80 '' 'restarts_target=1' 'restarts_drafter=1' 'sharing=\"MPS\"'
grep -q 'MPS is gone: .* was ended by signal 9' "$LOG" || fail "nothing is said of the death of MPS"
stop
mps_gone "after its death"
mps_make : 'sleep 1; exit 3'
PATH=$T/mps:$PATH start $GPU
waits 'time slices: MPS cannot be had: .* ended with exit code 3' 20
one 80 '' 'sharing=\"time slices: MPS cannot be had: '
[ "$(grep -c 'MPS is up' "$LOG")" = 4 ] || fail "not tried as often as it should be"
stop
mps_gone "one that dies"

# ---- MPS that does not come up: time slices with auto, refused with on
mps_make 'echo "no device here" >&2; exit 1' :
PATH=$T/mps:$PATH start $GPU
one 80 '' 'sharing=\"time slices: MPS cannot be had: ' "ended with exit code 1\\\""
grep -q ' info  mps: no device here' "$LOG" || fail "what MPS prints is not in the log"
stop
mps_gone "one that ends at once"
start $GPU --engine.mps=on --engine.mps_control="$MPS"
raw <<'END'
greet 0
wait_status "state=failed"
gen tag=1 ids=300 max_tokens=5
expect "tag=1 error code=worker_failed text=the target worker cannot be had: MPS cannot be had: "
END
grep -q 'ended with exit code 1; set engine.mps = auto to go on without' "$LOG" || fail "the sentence does not say what to do"
stop
mps_make 'trap "" TERM; while :; do sleep 1; done' :
PATH=$T/mps:$PATH start $GPU
one 80 '' 'sharing=\"time slices: MPS cannot be had: ' "did not come up within 5 s\\\""
stop
mps_gone "one that hangs"
mps_make 'trap "" TERM; while :; do sleep 1; done' :
PATH=$T/mps:$PATH start $GPU
stop INT
mps_gone "one that hangs while tandemd ends"
# not there at all
PATH=$T/none:$PATH start $GPU
command -v nvidia-cuda-mps-control >/dev/null || waits 'the workers share the GPU by time slices: nvidia-cuda-mps-control cannot be run' 5
stop
tandemd_run $GPU --engine.mps=on --engine.mps_control="$T/none" >"$OUT" 2>&1 && fail "it starts without MPS"
[ $? = 2 ] || fail "not the exit code of a wrong configuration"
[ "$(wc -l <"$OUT")" = 1 ] || fail "a start error is more than a line"
grep -q "^tandemd: engine.mps = on: cannot run $T/none: install it" "$OUT" || fail "the sentence"
tandemd_run $GPU --engine.mps=on --engine.mps_control="$T/none" --check >"$OUT" 2>&1 && fail "--check likes a program that is not there"
# workers that cannot use it: without, with auto
mps_make : :
FAKE_TARGET=$BASE_TARGET,mps_only=device
PATH=$T/mps:$PATH start $GPU
one 80 '' 'restarts_target=1' 'sharing=\"time slices: under MPS the target does not start: '
stop
mps_gone "workers that cannot use it"
FAKE_TARGET=$BASE_TARGET

# ---- a tandemd that was killed leaves MPS behind: its successor ends it
mps_make : :
PATH=$T/mps:$PATH start $GPU
waits 'MPS is up' 5
kill -9 "$PID"
while [ ! -s "$T/code" ]; do sleep 0.05; done
rm -f "$T/code"
kill -0 "$(head -n 1 "$T/mps/pids")" || fail "the test is void: MPS ended with tandemd"
PATH=$T/mps:$PATH start $GPU
one 80 '' 'sharing=\"MPS\"'
grep -q 'left of an earlier MPS daemon in this runtime folder is ended' "$LOG" || fail "the leftover was not seen"
# and a second one on the same folder does nothing to the first
tandemd_run $GPU >"$OUT" 2>&1 && fail "a second daemon on the same folder"
[ "$(wc -l <"$OUT")" = 1 ] || fail "a start error is more than a line"
one 80 '' 'restarts_target=0' 'sharing=\"MPS\"'
stop

# ---- no GPU after all: with auto the CPU, before anything was served; with cuda it is said
FAKE_TARGET='step_us=2000,gpu_only=device,text=CUDA driver version is insufficient for CUDA runtime version'
TANDEM_FAULT=daemon.device.gpu
export TANDEM_FAULT
mps_make : :
for lever in device unsupported; do
	FAKE_TARGET="step_us=2000,gpu_only=$lever,text=CUDA driver version is insufficient for CUDA runtime version"
	PATH=$T/mps:$PATH start --engine.device=auto --engine.slots=2
	one 80 '' 'sharing=\"host memory: the GPU cannot be used: CUDA driver version is insufficient' 'last_error=target: CUDA driver'
	grep -q 'the GPU cannot be used (CUDA driver version is insufficient.*): going on with the CPU' "$LOG" || fail "the log is silent"
	one 80 "$(kill_one target)" 'restarts_drafter=0'
	stop
	mps_gone "back to the CPU"
done
unset TANDEM_FAULT
FAKE_TARGET='step_us=2000,gpu_only=device,text=CUDA driver version is insufficient for CUDA runtime version'
start $GPU
raw <<'END'
greet 0
wait_status "state=failed"
gen tag=1 ids=300 max_tokens=5
expect "tag=1 error code=worker_failed text=the target worker cannot be had: CUDA driver version is insufficient for CUDA runtime version; update the NVIDIA driver, or set engine.device = cpu; it is tried"
END
stop
# another program has the GPU's memory: by what the target needs, and by an allocation that fails
for text in 'target: needs 9.00 GiB on the device but 1.00 of its 22.00 GiB are free: lower engine.slots' 'GPU 0: 2048 MiB can not be had: out of memory'; do
	FAKE_TARGET="step_us=2000,gpu_only=out_of_memory,text=$text"
	start $GPU --engine.mps=off
	raw <<-END
	greet 0
	wait_status "state=failed"
	gen tag=1 ids=300 max_tokens=5
	expect "tag=1 error code=worker_failed text=the target worker cannot be had: $text; "
	status
	expect "nvidia-smi lists"
	END
	stop
done
# compute mode exclusive, no MPS: the second one has no place
FAKE_TARGET=$BASE_TARGET FAKE_DRAFTER="gpu_only=device,text=GPU 0: context: CUDA-capable device(s) is/are busy or unavailable"
start $GPU --engine.mps=off
raw <<'END'
greet 0
wait_status "state=failed"
gen tag=1 ids=300 max_tokens=5
expect "its compute mode is exclusive: set engine.mps = on, or the mode to default"
END
stop

# ---- lines: many, long, without an end, of a dying worker; below the level nothing
FAKE_TARGET=$BASE_TARGET,print=3000,crash_at=6,once=$T/once4 FAKE_DRAFTER=$BASE_DRAFTER
start --engine.slots=2 --tandem.log_file="$T/lines"
one 80 '' 'restarts_target=1'
for f in "$LOG" "$T/lines"; do
	[ "$(grep -c ' warn  target: line [0-9]* of 3000$' "$f")" = 3000 ] || fail "lines were lost: $(grep -c 'target: line' "$f") of 3000"
	grep -q ' last words$' "$f" || fail "the last words of a dying worker are lost"
done
[ "$(awk '{ if (length($0) > m) m = length($0) } END { print m }' "$LOG")" -lt 2048 ] || fail "a line is too long"
stop
echo "a GPU's misfortunes are told, and the answers do not change"
