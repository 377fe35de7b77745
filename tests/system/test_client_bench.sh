# limit: 240
# tandem bench: its own daemon and a running one, text and JSON, several clients, the comparison; doctor.
. "$(dirname "$0")/daemon_lib.sh"
. "$(dirname "$0")/client_lib.sh"
MODEL="--model $ROOT/models/tiny/target-int4 --drafter $ROOT/models/tiny/drafter-int4 --device cpu"
export TMPDIR="$T" OPENBLAS_NUM_THREADS=1

# A daemon of its own: both built-in sets, nothing left behind.
code 0 bench $MODEL --limit 2 -n 12
for text in "built-in: shell: 2 prompts" "built-in: arithmetic: 2 prompts" "equal with and without *all 2 answers" "acceptance length" "channel" \
	"daemon's CPU" "prefill"; do
	shows "$text"
done
[ -z "$(find "$T" -name 'tandem-bench*')" ] || fail "its folder was left behind"
! pgrep -f "$T/tandem-bench" >/dev/null || fail "its daemon was left behind"
code 1 bench --model "$T/none"
one_line "$T/none"
code 1 bench --model "$ROOT/models/tiny/drafter-int4" --device cpu
one_line "did not start"
[ -z "$(find "$T" -name 'tandem-bench*')" ] || fail "the folder of the daemon that didn't start was left behind"

# A running daemon, a prompt file; one prompt is too long for it and is left out.
real
{
	printf '["How do I list files?", "What is 2 + 3?", "'
	printf '%0900d' 1 | sed 's/./word /g'
	printf '"]'
} >"$T/some.json"
code 0 bench -p "$T/some.json" -n 8 -c 2
shows "some.json: 3 prompts (1 left out: too long for the context), answers of at most 8 tokens, 2 clients"
shows "all 2 answers"
code 0 bench -p "$T/some.json" --limit 2 -n 8 -k 3 --json
for key in '"differing": 0' '"compared": 2' '"channel_us"' '"clients": 1' '"acceptance_length"'; do
	shows "$key"
done
code 0 bench -p "$T/some.json" --limit 2 -n 8 -c 2 --lossless
[ "$(grep -c '^ *\(1\|4\|7\|15\)  *2  *2  *0 ' "$OUT")" = 4 ] || fail "not four rows of equal answers"
code 0 bench -p "$T/some.json" --limit 1 -n 4 --lossless --json
shows '"draft_tokens": 15'

# Files that are none.
echo '{"a": 1}' >"$T/bad.json"
code 1 bench -p "$T/bad.json"
one_line "not a JSON array"
echo '["a", 1]' >"$T/bad.json"
code 1 bench -p "$T/bad.json"
one_line "entry 1 is not a string"
echo '["a"' >"$T/bad.json"
code 1 bench -p "$T/bad.json"
one_line "bad.json"
code 1 bench -p "$T/none.json"
one_line "none.json"

# doctor with a daemon, with and without the model's folders.
code 0 doctor --model "$ROOT/models/tiny/target-int4" --drafter "$ROOT/models/tiny/drafter-int4"
shows "^ok  *daemon .*serves target-int4"
shows "^ok  *drafter  *fits"
shows "^ok  *tokenizer  *8192 ids"
shows "^tandem can run here"
code 0 doctor --json
shows '"can_run": true'
code 1 doctor --model "$ROOT/models/tiny/drafter-int4"
shows "^missing  model"
shows "can't run here"
code 1 doctor --model "$ROOT/models/tiny/target-int4" --drafter "$ROOT/models/tiny/target-int4"
shows "^missing  drafter"
# A folder without weights, a tokenizer that isn't there.
mkdir -p "$T/m/model"
cp "$ROOT/models/tiny/target-int4/config.json" "$T/m/model/"
code 1 doctor --model "$T/m/model"
shows "no readable .safetensors"
shows "no tokenizer.json"
# Without the programs beside it: that is fatal; without a daemon it is not.
mkdir "$T/bin"
cp "$TANDEM" "$T/bin/"
PATH=/usr/bin:/bin "$T/bin/tandem" doctor --socket "$T/none" >"$OUT" && fail "no tandemd, and it can run?"
shows "^missing  programs  *no tandemd"
shows "^warn  *daemon"
printf '#!/bin/sh\necho cannot open shared object file\nexit 127\n' >"$T/bin/tandem-target"
chmod +x "$T/bin/tandem-target"
PATH=/usr/bin:/bin "$T/bin/tandem" doctor --socket "$T/none" >"$OUT" && fail "a worker that doesn't start, and it can run?"
shows "tandem-target doesn't start (code 127): cannot open shared object"
stop
