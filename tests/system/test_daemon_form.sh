# limit: 240
# The head in BF16, in 4 bits, and in 4 bits with the best logits computed again (model.head), activations as they are and in 8 bits (model.activations), with the
# real workers and the tiny model: all answer, in the memory that was planned; which one auto means; after a kill the successor has the same one; a changed
# setting is never served from memory that holds the other.
. "$(dirname "$0")/daemon_lib.sh"
. "$(dirname "$0")/systemd_lib.sh"
serve() {
	WORKER=$BIN/tandem-target
	start --engine.drafter_worker="$BIN/tandem-drafter" --engine.slots=1 --engine.context=512 --engine.chunk=64 "$@"
	raw <<-'END'
	greet 0
	timeout 60000
	wait_status "state=ready"
	END
	for role in target drafter; do
		planned=$(sed -n "s/.*memory of the cpu: $role: .*weights \([0-9.]*\),.*/\1/p" "$LOG")
		taken=$(sed -n "s/.*the $role worker is ready: .* \([0-9.]*\) MiB of weights.*/\1/p" "$LOG" | head -n 1)
		[ -n "$planned" ] && [ "$planned" = "$taken" ] || fail "$*: $role: $planned MiB of weights planned, $taken taken"
	done
}
# $1: the answer's file, with the first log-probability, which tells forms apart where tokens do not; $2: script lines in the middle
ask() {
	raw <<-END
	greet 1
	greet 0
	timeout 60000
	gen tag=1 chat="user:count the lines of all C files" max_tokens=48 ignore_eos=1 logprobs=2
	$2
	use 0
	until "tag=1 finish reason=2"
	total tag=1
	END
	totals >"$1"
	grep -q ' gap=0 ' "$1" || fail "no answer: $(cat "$1")"
	sed -n 's/.* delta position=.* \(first=[^ ]*\).*/\1/p' "$OUT" | head -n 1 >>"$1"
}

for head in bf16 rescored int4; do
	serve --model.head=$head
	ask "$T/$head" 'use 1'
	eval "taken_$head=\$(sed -n 's/.*the target worker is ready: .* \([0-9]*\)[.0-9]* MiB of weights.*/\1/p' "$LOG")"
	[ $head = int4 ] || stop
done
cmp -s "$T/bf16" "$T/int4" && fail "the two heads give the same log-probabilities: nothing was tested"
cmp -s "$T/rescored" "$T/int4" && fail "nothing was computed again"
ids() {
	sed -n 's/.* ids=\([0-9,]*\).*/\1/p' "$T/$1"
}
[ -n "$(ids bf16)" ] && [ "$(ids rescored)" = "$(ids bf16)" ] || fail "rescored: other tokens than with the BF16 head: $(ids rescored), $(ids bf16)"
[ "$taken_rescored" = "$taken_int4" ] || fail "rescoring from the table takes memory: $taken_rescored MiB, $taken_int4 MiB"
[ "$taken_int4" -gt "$taken_bf16" ] || fail "a head of 4 bits takes nothing: $taken_int4 MiB, $taken_bf16 MiB with the table alone"

# both workers die: the successors find the maps, kind and scales included, in the memory
both_die() { # $1: the answer's file that must come again
	for worker in target drafter; do
		ask "$T/again" "use 1
		wait_status \"state=ready\"
		sleep 100
		wait_status \"state=ready\"
		kill $worker 9"
		cmp -s "$T/again" "$1" || fail "$worker killed: another answer: $(diff "$T/again" "$1")"
	done
	raw <<-'END'
	greet 0
	wait_status "state=ready"
	END
	tail -n 1 "$OUT" | grep -q 'imported_target=1 .*imported_drafter=1' || fail "weights were read again: $(tail -n 1 "$OUT")"
}
both_die "$T/int4"
stop
serve --model.head=int4 --model.activations=int8
ask "$T/int8" 'use 1'
cmp -s "$T/int8" "$T/int4" && fail "activations in 8 bits change no log-probability: nothing was tested"
both_die "$T/int8"
stop

# auto: as the other maps, and activations as they are
serve
ask "$T/auto" 'use 1'
cmp -s "$T/auto" "$T/rescored" || fail "auto is not rescored beside weights of 4 bits"
stop
serve --model.weights=bf16
ask "$T/auto" 'use 1'
stop
serve --model.weights=bf16 --model.head=bf16
ask "$T/both" 'use 1'
cmp -s "$T/auto" "$T/both" || fail "auto is not bf16 beside weights in BF16"
stop
tandemd_run --model.head=int8 >"$OUT" 2>&1 && fail "int8 was accepted"
grep -q 'model.head = int8: must be auto|bf16|int4|rescored' "$OUT" || fail "the message does not say what there is: $(cat "$OUT")"

tandemd_run --model.activations=int4 >"$OUT" 2>&1 && fail "activations of 4 bits were accepted"
grep -q 'model.activations = int4: must be auto|bf16|int8' "$OUT" || fail "the message does not say what there is: $(cat "$OUT")"

# a restart with another setting reads the files, one with the same does not
WORKER=
printf '[model]\nhead = int4\n' >"$T/ini"
manage stop_ms=60000 start_ms=60000 -- --config "$T/ini" --engine.threads=1 --engine.context=256 --engine.slots=2
tell start
serves 0 0 "the first start"
tell restart
serves 1 1 "the same setting"
printf '[model]\nhead = int4\nactivations = int8\n' >"$T/ini"
rm "$T/answer"
tell restart
serves 0 0 "another setting"
grep -q 'kept of the target is given up: it holds another model' "$LOG" || fail "the log does not say why"
tell restart
serves 1 1 "the other setting's memory"
manage_end
echo "all forms serve, each from its own memory"
