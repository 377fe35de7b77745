# limit: 60
# tandem chat: conversations are saved and loaded, system messages come from files, --json gives one object per answer; tokenize --decode --json.
. "$(dirname "$0")/daemon_lib.sh"
. "$(dirname "$0")/client_lib.sh"
export XDG_STATE_HOME="$T/state"
real
cd "$T" || fail "cd"
# chat WANTED LINE...: exit code, lines of standard input; output in $OUT, errors in $T/err
chat() {
	want=$1
	shift
	printf '%s\n' "$@" | "$TANDEM" chat --no-think -g -n 6 $opts >"$OUT" 2>"$T/err"
	got=$?
	[ $got = "$want" ] || fail "chat: exit code $got and not $want: $(cat "$T/err")"
}
opts=
said() {
	grep -q -- "$1" "$T/err" || fail "chat did not say '$1': $(cat "$T/err")"
}

# A conversation, saved, forgotten, loaded again: the next answer is the one that would have come.
chat 0 "How do I list files?" "And the largest?" "/save $T/c.json" "And the oldest?" "/save $T/whole.json"
said "Saved: 4 messages"
said "Saved: 6 messages"
[ "$(stat -c %a c.json)" = 600 ] || fail "a saved conversation is not private"
cp "$OUT" first
chat 0 "/load $T/c.json" "And the oldest?" "/save $T/again.json"
said "Loaded: 4 messages"
cmp -s whole.json again.json || fail "the loaded conversation went on differently"
[ "$(tail -n 1 "$OUT")" = "$(tail -n 1 first)" ] || fail "another answer after loading"
# A system message is saved and loaded, and @FILE is where it may come from; @@ is an @.
echo "Be brief." >system
opts="-s @system" chat 0 "How do I list files?" "/save s.json"
said "Saved: 3 messages"
grep -q '"content": "Be brief.\\n"' s.json || fail "the system message is not the file's"
opts="-s @@system" chat 0 "/save at.json"
grep -q '"content": "@system"' at.json || fail "@@ is not @"
opts="-s @missing" chat 2 "x"
one_line "missing"
"$TANDEM" run -s @system --no-think -g -n 6 "How do I list files?" >a || fail "run -s @FILE"
"$TANDEM" run -s "$(cat system; echo x | tr -d 'x\n')
" --no-think -g -n 6 "How do I list files?" >b || fail "run -s TEXT"
cmp -s a b || fail "a system message from a file is another"
# What a chat API's client may have written.
echo '{"messages": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]}' >o.json
chat 0 "/load o.json" "/save p.json"
said "Loaded: 2 messages"

# What can't be loaded changes nothing and, without a terminal, ends it by exit code 1.
for bad in '[' '3' '{}' '[{"role": "user"}]' '[{"role": "robot", "content": "x"}]' '[{"role": "user", "content": 3}]' '[3]' \
	'[{"role": "user", "content": "x"}, {"role": "system", "content": "x"}]' '{"messages": "x"}' ''; do
	printf '%s' "$bad" >bad.json
	chat 1 "/load bad.json"
	one_line "bad.json"
done
chat 1 "/load missing.json"
one_line "missing.json"
chat 1 "/load $T"
one_line "$T"
chat 1 "/save $T/none/c.json"
one_line "none/c.json"
chat 1 "/save"
one_line "name of a file"
# A failed save leaves what was there. root may write anywhere, a folder in the place of the file stops everybody.
mkdir -p c2.json.new/x
cp c.json c2.json
chat 1 "How?" "/save c2.json"
cmp -s c.json c2.json || fail "a failed save cost the file"
ls c2.json.new/x >/dev/null || fail "something else was removed"

# One object per answer, nothing else on stdout; errors are objects as well.
opts=--json chat 0 "How do I list files?" "And the largest?"
[ "$(wc -l <"$OUT")" = 2 ] || fail "not two lines: $(cat "$OUT")"
[ "$(grep -c '^{"text":".*"finish_reason":"[a-z]*".*"output_tokens":[0-9]*.*}$' "$OUT")" = 2 ] || fail "not two objects: $(cat "$OUT")"
opts="--json -n 0" chat 1 "How do I list files?" "And the largest?"
[ "$(cat "$OUT")" = "$(grep '^{"error":{"code":"invalid_argument","text":".*"}}$' "$OUT")" ] || fail "not an error object: $(cat "$OUT")"

code 0 tokenize --json "some text"
ids=$(sed 's/.*"ids":\[\([0-9,]*\)\].*/\1/' "$OUT")
code 0 tokenize --decode --json "$ids"
n=$(echo "$ids" | tr ',' '\n' | wc -l)
[ "$(cat "$OUT")" = "{\"n\":$n,\"text\":\"some text\"}" ] || fail "decoded: $(cat "$OUT")"
stop

# Without a daemon the error is an object, too.
for c in "run --json hi" "status --json" "tokenize --json hi" "tokenize --json -d 1" "chat --json"; do
	code 3 $c
	[ "$(cat "$OUT")" = "$(grep '^{"error":{"code":"not_found","text":".*"}}$' "$OUT")" ] && [ -s "$OUT" ] || fail "tandem $c: not an error object: $(cat "$OUT")"
	one_line "no daemon"
done
code 3 run --stream-json hi
[ "$(cat "$OUT")" = "$(grep '^{"code":"not_found","text":".*","event":"error"}$' "$OUT")" ] && [ -s "$OUT" ] || fail "not an error event: $(cat "$OUT")"
