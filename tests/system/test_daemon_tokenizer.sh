# limit: 60
# A tokenizer that can't serve this model, or is no file at all: tandemd and --check say so in one sentence, at once.
. "$(dirname "$0")/daemon_lib.sh"
mkdir "$T/m"
cp -r "$ROOT/models/tiny/target-int4" "$ROOT/models/tiny/drafter-int4" "$T/m"
check() { # what the last line must hold
	for how in --check ''; do
		timeout 60 "$BIN/tandemd" $how --tandem.socket="$SOCK" --tandem.runtime_dir="$T/run" --model.target="$T/m/target-int4" --model.drafter="$T/m/drafter-int4" \
			--engine.target_worker="$WORKER" --engine.drafter_worker="$WORKER" --engine.device=cpu >"$OUT" 2>&1
		code=$?
		[ $code = 2 ] || fail "$1: code $code, not 2"
		tail -n 1 "$OUT" | grep -q "$1" || fail "not said: $1"
	done
}
check 'there is no tokenizer.json'
mkfifo "$T/m/tokenizer.json"
check 'tokenizer.json: is not a regular file'
rm "$T/m/tokenizer.json"
ln -s /dev/zero "$T/m/tokenizer.json"
check 'tokenizer.json: is not a regular file'
rm "$T/m/tokenizer.json"
mkdir "$T/m/tokenizer.json"
check 'tokenizer'
rmdir "$T/m/tokenizer.json"
for token in im_start im_end; do
	sed "s/<|$token|>/<|other|>/g" "$ROOT/models/tiny/tokenizer.json" >"$T/m/tokenizer.json"
	check "has no added token <|$token|>, which chats of a qwen3_5.* model are made of: it belongs to another model"
done
cp "$ROOT/models/tiny/tokenizer.json" "$T/m/tokenizer.json"
"$BIN/tandemd" --check --tandem.runtime_dir="$T/run" --model.target="$T/m/target-int4" --model.drafter="$T/m/drafter-int4" --engine.target_worker="$WORKER" \
	--engine.drafter_worker="$WORKER" --engine.device=cpu >"$OUT" 2>&1 || fail "the model's own tokenizer is refused"
echo "fine"
