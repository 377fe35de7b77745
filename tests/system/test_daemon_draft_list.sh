# limit: 240
# Drafts from a list of tokens, with the real workers: `tandem bench --count` makes one, greedy answers stay what they are, also when the drafter is killed, a
# restart with another list keeps the weights; what is no list is refused in a line.
. "$(dirname "$0")/daemon_lib.sh"
. "$(dirname "$0")/client_lib.sh"
. "$(dirname "$0")/systemd_lib.sh"
export TMPDIR="$T" OPENBLAS_NUM_THREADS=1
SMALL="--engine.slots=1 --engine.context=512 --engine.chunk=64"
serve() {
	WORKER=$BIN/tandem-target
	start --engine.drafter_worker="$BIN/tandem-drafter" $SMALL "$@"
	raw <<-'END'
	greet 0
	timeout 60000
	wait_status "state=ready"
	END
}
# $1: the answer's file; $2: script lines in the middle. Leaves what was drafted and accepted in OUT.
ask() {
	raw <<-END
	greet 1
	greet 0
	timeout 60000
	gen tag=1 chat="user:How do I count the lines of all C files?" max_tokens=48 ignore_eos=1 drafts=15
	$2
	use 0
	until "tag=1 finish reason=2"
	total tag=1
	END
	totals | sed 's/.* ids=\([0-9,]*\).*/\1/' >"$1"
	[ -s "$1" ] || fail "no answer"
}

# What was counted, in the form that is read: the most frequent first, filled up to the size that was asked for.
printf '["How do I count the lines of all C files?", "How do I list the files of a directory, the largest first?"]' >"$T/prompts.json"
code 0 bench --count "$T/list" --count-size 900 --prompts "$T/prompts.json" -n 48 --model "$ROOT/models/tiny/target-int4" --drafter "$ROOT/models/tiny/drafter-int4" \
	--device cpu --context 512
shows "different ones; $T/list lists 900, which are 100.00 % of the answers"
[ "$(head -n 1 "$T/list")" = "tandem-draft-vocabulary 1" ] && [ "$(grep -c '^[0-9]*$' "$T/list")" = 900 ] || fail "the file: $(head -n 5 "$T/list")"
[ "$(grep '^[0-9]*$' "$T/list" | sort -u | wc -l)" = 900 ] || fail "ids stand there twice"
code 2 bench --count "$T/list"
one_line "of prompts that --prompts names"
code 2 bench --count-size 9
one_line "goes with --count"

serve
ask "$T/all" 'use 1'
stop
serve --model.draft_vocabulary="$T/list"
grep -q "drafts are chosen from [0-9]* of 8192 tokens: 900 of $T/list" "$LOG" || fail "the log does not say so"
ask "$T/some" 'use 1'
cmp -s "$T/all" "$T/some" || fail "another answer: $(cat "$T/all" "$T/some")"
ask "$T/again" 'use 1
	wait_status "state=ready"
	sleep 100
	wait_status "state=ready"
	kill drafter 9'
cmp -s "$T/all" "$T/again" || fail "drafter killed: another answer"
raw <<'END'
greet 0
timeout 60000
wait_status "state=ready"
END
tail -n 1 "$OUT" | grep -q 'imported_drafter=1' || fail "weights were read again: $(tail -n 1 "$OUT")"
stop

# Another list is no other model: its rows are copied from the weights that were kept.
WORKER=
printf '[model]\ndraft_vocabulary = %s\n' "$T/list" >"$T/ini"
manage stop_ms=60000 start_ms=60000 -- --config "$T/ini" --engine.threads=1 --engine.context=256 --engine.slots=2
tell start
serves 0 0 "the first start"
head -n 302 "$T/list" >"$T/short"
printf '[model]\ndraft_vocabulary = %s\n' "$T/short" >"$T/ini"
tell restart
serves 1 1 "another list"
grep -q "tokens: 300 of $T/short" "$LOG" || fail "the new list is not used"
manage_end

refuse() { # what it says, code
	tandemd_run --check --model.draft_vocabulary="$T/bad" >"$OUT" 2>&1 && fail "'$1' was accepted"
	grep -q "model.draft_vocabulary: $T/bad$1" "$OUT" || fail "it does not say '$1'"
}
refuse ": can't be opened"
echo 12 >"$T/bad"
refuse ': is no list of tokens: its first line must be "tandem-draft-vocabulary 1"'
{ cat "$T/list"; echo 8192; } >"$T/bad"
refuse ":903: token 8192; ids of this model go from 0 to 8191: the list belongs to another one"
{ cat "$T/list"; tail -n 1 "$T/list"; } >"$T/bad"
refuse ":903: token [0-9]* stands there a second time"
head -n 30 "$T/list" >"$T/bad"
refuse ": 28 tokens are too few"
echo "drafts from a list: the same answers, one start, one restart"
