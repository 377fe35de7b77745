# limit: 150
# Constrained output through the daemon with the shipped pair: JSON objects, schemas, tool calls; what can't be enforced is refused; neighbours that are
# free are not touched; a worker killed in the middle changes nothing.
. "$(dirname "$0")/daemon_lib.sh"
[ -x "$BIN/tandem-target" ] && [ -x "$BIN/tandem-drafter" ] || fail "the workers are not built"
WORKER=$BIN/tandem-target
start --engine.drafter_worker="$BIN/tandem-drafter" --engine.slots=3 --engine.context=1024 --engine.chunk=64

person='{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":12},\"age\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":150},\"kind\":{\"enum\":[\"cat\",\"dog\"]},\"more\":{\"type\":\"array\",\"items\":{\"type\":\"boolean\"},\"minItems\":4,\"maxItems\":9}},\"required\":[\"name\",\"age\",\"kind\",\"more\"],\"additionalProperties\":false}'
tool='{\"type\":\"function\",\"function\":{\"name\":\"look_up\",\"parameters\":{\"type\":\"object\",\"properties\":{\"kind\":{\"type\":\"string\",\"enum\":[\"file\",\"folder\"]},\"depth\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":9}},\"required\":[\"kind\",\"depth\"]}}}'
other='{\"type\":\"function\",\"function\":{\"name\":\"stop\"}}'

# The text of the answer with this tag, as rawclient quotes it.
answer() {
	grep '^total ' "$OUT" | sed -n "$1s/.* text=\"\\(.*\\)\"\$/\\1/p"
}

# What is refused is told under the tag; the connection goes on.
raw <<END
greet 0
wait_status "state=ready"
gen tag=1 text="x" schema="{\"type\":\"array\",\"uniqueItems\":true}"
expect "tag=1 error code=unsupported_schema text=the JSON schema: uniqueItems at #"
gen tag=2 text="x" schema="{\"type\":"
expect "tag=2 error code=unsupported_schema text=the JSON schema is no JSON"
gen tag=3 text="x" tool_choice="f"
expect "tag=3 error code=invalid_argument"
gen tag=4 chat="user:x" tool="$tool" tool_choice="none_such"
expect "tag=4 error code=invalid_argument text=tool_choice names \"none_such\""
gen tag=5 chat="user:x" tool_choice="required"
expect "tag=5 error code=invalid_argument"
gen tag=6 text="x" no_constraint=1
expect "tag=6 error code=invalid_argument"
END

# A free request alone, then beside constrained ones; these with and without drafts.
free_one='chat="user:how do I find large files?" max_tokens=24 ignore_eos=1 temperature=0.8 seed=7'
constrained() { # drafts, what happens in the middle
	raw <<-END
	greet 1
	greet 0
	timeout 60000
	gen tag=1 $free_one
	gen tag=2 chat="user:describe a pet" thinking=0 schema="$person" max_tokens=200 $1
	gen tag=3 chat="user:look it up" thinking=0 tool="$tool" tool="$other" tool_choice="look_up" max_tokens=200 temperature=1 seed=11 ignore_eos=1
	$2
	until "tag=2 finish reason=1"
	use 0
	wait_status "used=0 queued=0"
	total tag=1
	total tag=2
	total tag=3
	END
}
raw <<END
greet 0
timeout 60000
gen tag=1 $free_one
until "tag=1 finish"
total tag=1
END
totals >"$T/alone"
constrained draft_tokens=0
totals >"$T/plain"
sed -n 1p "$T/plain" | cmp -s - "$T/alone" || fail "a free request is not what it is alone: $(cat "$T/alone"; sed -n 1p "$T/plain")"
text=$(answer 2 | sed 's,\\n, ,g') # a line end between a comma and a name is JSON, too
printf '%s' "$text" | grep -Eq '^\{.*"name": ?".*", *"age": ?[0-9]+, *"kind": ?"(cat|dog)", *"more": ?\[ ?(true|false)' || fail "not the schema's object: $text"
text=$(answer 3)
printf '%s' "$text" | grep -Eq '<tool_call>.*<function=look_up>.*<parameter=kind>.*(file|folder).*</parameter>.*<parameter=depth>.*[1-9].*</function>.*</tool_call>$' ||
	fail "not the tool's call: $text"
constrained draft_tokens=15
totals >"$T/drafts"
[ "$(sed -n 2p "$T/drafts")" = "$(sed -n 2p "$T/plain")" ] || fail "speculation changes a constrained answer: $(cat "$T/plain" "$T/drafts")"

# Killed in the middle: the successor is told the grammar and where it stands.
for worker in target drafter; do
	constrained draft_tokens=15 "until \"tag=2 delta position=8\"
	use 1
	status
	until \"status\"
	kill $worker 9
	use 0"
	totals | cmp -s - "$T/drafts" || fail "a killed $worker changes the answers: $(totals; cat "$T/drafts")"
done

# Any object; thinking first; a length that cuts; the client's own options.
raw <<END
greet 0
timeout 60000
gen tag=1 text="{" json_object=1 temperature=1 seed=3 max_tokens=400
until "tag=1 finish"
total tag=1
gen tag=2 chat="user:hi" thinking=1 schema="{\"const\":{\"a\":[1,null]}}" max_tokens=3
until "tag=2 finish reason=2"
gen tag=3 text="x" schema="{\"type\":\"string\",\"minLength\":500}" max_tokens=5
until "tag=3 finish reason=2"
# A pattern that can read a text in very many ways ends with an error of its own, before anything took long; a neighbour goes on.
gen tag=4 $free_one
gen tag=5 text="x" schema="{\"pattern\":\"^((((((((.?){9}){9}){9}){9}){9}){9}){9}){9}\$\"}" max_tokens=50
until "tag=5 error code=unsupported_schema text=the constraint leaves nothing"
until "tag=4 finish"
END
answer 1 | grep -q '^{' || fail "no object: $(totals)"
printf '{"type":"object","properties":{"ok":{"type":"boolean"}},"required":["ok"],"additionalProperties":false}' >"$T/schema"
"$BIN/tandem" run --socket "$SOCK" --no-think --json-schema "$T/schema" "is it so?" >"$OUT" || fail "tandem run --json-schema"
tr -d ' \n' <"$OUT" | grep -Eq '^\{"ok":(true|false)\}$' || fail "tandem run --json-schema gives $(cat "$OUT")"
"$BIN/tandem" run --socket "$SOCK" --no-think --json-object -n 300 "an object" >"$OUT" || fail "tandem run --json-object"
head -c 1 "$OUT" | grep -q '{' || fail "tandem run --json-object gives $(cat "$OUT")"
! "$BIN/tandem" run --socket "$SOCK" --json-schema '{"not":{}}' "x" >"$OUT" 2>"$T/err" || fail "a schema that can't be enforced is taken"
grep -q 'not at #' "$T/err" || fail "the refusal names no keyword: $(cat "$T/err")"
stop
echo "constrained answers as they should be"
