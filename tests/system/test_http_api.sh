# limit: 120
# The HTTP API: every endpoint, its parameters, streams, errors, pipelining, hang-ups, the end.
. "$(dirname "$0")/daemon_lib.sh"
. "$(dirname "$0")/http_lib.sh"

# Bytes to the HTTP socket, printf format; the answer is in $OUT.
http() {
	printf "$@" | "$TOOLS/http_raw" -w 20000 "$H" >"$OUT" 2>&1 || fail "http_raw"
}

# METHOD-less: path and JSON body; the connection ends with the answer.
post() {
	http 'POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' "$1" "${#2}" "$2"
}

get() {
	http 'GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n' "$1"
}

# Status, then the parameter and the code that the error names.
refused() {
	has "HTTP/1.1 $1 " "\"param\": $2" "\"code\": \"$3\""
}

FAKE_TARGET=step_us=1000,load_ms=600 start --http.socket="$H" --model.name=tiny --http.ping_s=1

# While it loads
get /health
has 'HTTP/1.1 503 ' '"status": "loading"' '"role": "target"'
tries=0
until get /health && grep -q '200 OK' "$OUT"; do
	tries=$((tries + 1))
	[ $tries -lt 200 ] || fail "never ready"
	sleep 0.05
done
has '{"status": "ok"}'

get /v1/models
has '"object": "list"' '"id": "tiny"' '"max_model_len": 4096'
get /v1/models/tiny
has '"id": "tiny", "object": "model"'
get /v1/models/ti%6ey
has '"id": "tiny", "object": "model"'
get /v1/models/other
refused 404 '"model"' model_not_found
get '/version?x=1'
has '{"version": "'
get /metrics
has 'text/plain; version=0.0.4' '# TYPE tandem_requests_total counter'
http 'HEAD /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n'
has 'HTTP/1.1 200 ' 'Content-Length: '
hasnt '# TYPE'
http 'OPTIONS /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n'
has 'HTTP/1.1 204 ' 'Allow: GET, HEAD, OPTIONS'

# Tokens, in both dialects
post /tokenize '{"prompt": "Hello there", "return_token_strs": true}'
has '"count": 2' '"tokens": [7041, 984]' '"token_strs": ["Hello", " there"]'
post /tokenize '{"content": "Hello there"}'
has '"tokens": [7041, 984]'
post /tokenize '{"messages": [{"role": "user", "content": "Hello there"}]}'
has '7041, 984'
post /detokenize '{"tokens": [7041, 984]}'
has '"prompt": "Hello there", "content": "Hello there"'
post /detokenize '{"tokens": [7041, -1]}'
has 'HTTP/1.1 400 '

# Completions: whole, streamed, several prompts, ids, log-probabilities. The fake worker repeats the prompt.
post /v1/completions '{"model": "tiny", "prompt": "Hello there", "max_tokens": 5}'
has '"object": "text_completion"' '"text": "Hello thereHello thereHello"' '"finish_reason": "length"' '"prompt_tokens": 2, "completion_tokens": 5, "total_tokens": 7'
post /v1/completions '{"prompt": ["Hello there", [7041]], "max_tokens": 2, "n": 2, "logprobs": 1}'
has '{"index": 0, "text": "Hello there"' '{"index": 1, "text": "Hello there"' '{"index": 2, "text": "HelloHello"' '{"index": 3, "text": "HelloHello"' \
	'"tokens": ["Hello", " there"], "token_logprobs": [-0.25, -0.25], "top_logprobs": [{"Hello": -0.25}, {" there": -0.25}], "text_offset": [0, 5]' \
	'"prompt_tokens": 3, "completion_tokens": 8'
post /v1/completions '{"prompt": "Hello there", "max_tokens": 6, "stop": "there"}'
has '"text": "Hello "' '"finish_reason": "stop"'
post /v1/completions '{"prompt": "Hello there", "max_tokens": 5, "stream": true, "stream_options": {"include_usage": true}}'
has 'Content-Type: text/event-stream' '"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 5' 'data: [DONE]' '"finish_reason": "length"'
text=$(sed -n 's/.*"text": "\([^"]*\)".*/\1/p' "$OUT" | tr -d '\n')
[ "$text" = "Hello thereHello thereHello" ] || fail "the stream's text is '$text'"
B10='{"prompt": "Hello there", "max_tokens": 5, "stream": true}'
http 'POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' ${#B10} "$B10"
has 'HTTP/1.1 200 ' 'data: [DONE]' 'Connection: close'
hasnt chunked

# Chats
C='"messages": [{"role": "user", "content": "Hello there"}], "chat_template_kwargs": {"enable_thinking": false}'
post /v1/chat/completions "{$C, \"max_tokens\": 8}"
has '"object": "chat.completion"' '"role": "assistant", "content": "user\nHello there"' '"finish_reason": "stop"'
post /v1/chat/completions "{$C, \"max_tokens\": 8, \"stream\": true}"
has '"object": "chat.completion.chunk"' '"delta": {"role": "assistant"' '"delta": {}, "logprobs": null, "finish_reason": "stop"' 'data: [DONE]'
post /v1/chat/completions "{$C, \"max_tokens\": 2, \"logprobs\": true, \"top_logprobs\": 1}"
has '"logprobs": {"content": [{"token": "' '"logprob": -0.25, "bytes": [' '"top_logprobs": [{"token": "'
post /v1/chat/completions '{"messages": [{"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, {"role": "system", "content": "c"},
	{"role": "user", "content": "d"}, {"role": "assistant", "content": null, "reasoning_content": "r", "tool_calls": [{"id": "1", "type": "function", "function":
	{"name": "f", "arguments": "{\"x\": 1}"}}]}, {"role": "tool", "tool_call_id": "1", "content": "e"}, {"role": "user", "content": "g"}], "max_tokens": 3, "user": "me"}'
has 'HTTP/1.1 200 '
post /v1/chat/completions "{$C, \"max_completion_tokens\": 3, \"temperature\": 0.5, \"top_p\": 0.9, \"top_k\": 5, \"min_p\": 0.1, \"repetition_penalty\": 1.1,
	\"presence_penalty\": 0.5, \"frequency_penalty\": -0.5, \"seed\": -7, \"stop\": [\"zzz\"], \"stop_token_ids\": [5], \"ignore_eos\": true, \"logit_bias\": {\"17\": -100},
	\"n\": 2, \"deadline_ms\": 60000, \"band\": \"batch\", \"draft_tokens\": 2, \"cache\": false, \"response_format\": {\"type\": \"text\"}, \"tool_choice\": \"none\"}"
has 'HTTP/1.1 200 ' '"index": 1' '"completion_tokens": 6' '"seed": -7}'
# The seed that was drawn is told, and may be given back by a client whose numbers are doubles (below 2^53).
for i in 1 2 3; do
	post /v1/completions '{"prompt": "Hello there", "max_tokens": 6, "temperature": 1}'
	seed=$(sed -n 's/.*"seed": \([-0-9]*\)}.*/\1/p' "$OUT")
	[ "$seed" -ge 0 ] && [ "$seed" -lt 9007199254740992 ] || fail "the seed that was drawn is $seed"
	post /v1/completions "{\"prompt\": \"Hello there\", \"max_tokens\": 6, \"temperature\": 1, \"seed\": $seed}"
	has 'HTTP/1.1 200 ' "\"seed\": $seed}"
done

# Thinking apart; calls of tools (the prompt that is repeated shows how a call is written)
post /v1/chat/completions '{"messages": [{"role": "user", "content": "Hello there"}], "chat_template_kwargs": {"enable_thinking": true}, "max_tokens": 9}'
has '"content": "", "reasoning_content": "user\nHello there"' '"reasoning_tokens": 6'
W='"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]'
post /v1/chat/completions "{$C, $W}"
has '"tool_calls": [{"id": "call_' '"name": "example_function_name", "arguments": "{\"example_parameter_1\": \"value_1\", ' '"finish_reason": "tool_calls"'
post /v1/chat/completions "{$C, $W, \"stream\": true}"
has '"tool_calls": [{"index": 0, "id": "call_' '{"index": 0, "function": {"arguments": "{\"example_parameter_1\": ' '"finish_reason": "tool_calls"'
post /v1/chat/completions "{$C, $W, \"tool_choice\": \"none\"}"
has '"content": "user\nHello there"'

# Refusals, each under the name of what is wrong
post /v1/completions '{"prompt": "a", "temperature": -1}' && refused 400 '"temperature"' invalid_argument
post /v1/completions '{"prompt": "a", "temperature": "hot"}' && refused 400 '"temperature"' invalid_argument
post /v1/completions '{"prompt": "a", "max_tokens": 0}' && refused 400 '"max_tokens"' invalid_argument
post /v1/completions '{"prompt": "a", "n": 17}' && refused 400 '"n"' invalid_argument
post /v1/completions '{"prompt": ["a", "b"], "n": 9}' && refused 400 '"n"' invalid_argument
post /v1/completions '{"prompt": "a", "echo": true}' && refused 400 '"echo"' invalid_argument
post /v1/completions '{"prompt": "a", "logprobs": 99}' && refused 400 '"logprobs"' invalid_argument
post /v1/completions '{"prompt": "a", "tempratur": 1}' && refused 400 '"tempratur"' invalid_argument
post /v1/completions '{"prompt": "a", "prompt": "b"}' && refused 400 null invalid_argument
post /v1/completions '{"prompt": [1, -5]}' && refused 400 '"prompt"' invalid_argument
post /v1/completions '{"prompt": ""}' && refused 400 '"prompt"' invalid_argument
post /v1/completions '{"prompt": "a", "stream_options": {}}' && refused 400 '"stream_options"' invalid_argument
post /v1/completions '{"prompt": "a"' && refused 400 null invalid_argument
post /v1/completions '[]' && refused 400 null invalid_argument
post /v1/completions '' && refused 400 null invalid_argument
post /v1/completions "{\"prompt\": $(printf '[%.0s' $(seq 80))$(printf ']%.0s' $(seq 80))}" && refused 400 null invalid_argument
post /v1/completions '{"model": "other", "prompt": "a"}' && refused 404 '"model"' model_not_found
post /v1/completions "{\"prompt\": \"$(printf 'word %.0s' $(seq 9000))\"}" && refused 400 '"prompt"' context_length_exceeded
post /v1/chat/completions '{}' && refused 400 '"messages"' invalid_argument
post /v1/chat/completions '{"messages": [{"role": "robot", "content": "a"}]}' && has 'HTTP/1.1 400 '
post /v1/chat/completions '{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}' && refused 400 '"messages"' invalid_argument
post /v1/chat/completions "{$C, \"top_logprobs\": 2}" && refused 400 '"top_logprobs"' invalid_argument
post /v1/chat/completions "{$C, \"logprobs\": true, \"top_logprobs\": 21}" && refused 400 '"top_logprobs"' invalid_argument
post /v1/chat/completions "{$C, \"tool_choice\": \"required\"}" && refused 400 '"tool_choice"' invalid_argument
post /v1/completions '{"prompt": "a", "deadline_ms": 5, "max_tokens": 4000}' && has 'HTTP/1.1 504 ' deadline

# Answers come in order, on one connection
http 'GET /version HTTP/1.1\r\nHost: x\r\n\r\nPOST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n{"prompt": "a"}POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 32\r\n\r\n{"prompt": "a", "max_tokens": 2}GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n'
[ "$(grep -c '^HTTP/1.1 200 \|}HTTP/1.1 200 ' "$OUT")" = 4 ] || fail "not four answers"
order=$(grep -o '"version"\|"count"\|"text_completion"\|"status"' "$OUT" | tr -d '\n')
[ "$order" = '"version""count""text_completion""status"' ] || fail "answers in the order $order"

# Hang-ups: while it waits, runs, streams; n > 1. Nothing stays behind.
for body in '{"prompt": "a b c", "max_tokens": 4000, "ignore_eos": true}' '{"prompt": "a b c", "max_tokens": 4000, "n": 16, "ignore_eos": true, "stream": true}'; do
	printf 'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' ${#body} "$body" | "$TOOLS/http_raw" -h 150 "$H" >/dev/null
done
tries=0
until get /metrics && ! grep -q '^tandem_requests_\(running\|waiting\){[^}]*} [1-9]' "$OUT"; do
	tries=$((tries + 1))
	[ $tries -lt 200 ] || fail "requests run on after their client hung up"
	sleep 0.05
done
grep -q 'request [0-9]*: cancelled' "$LOG" || fail "no request was cancelled"

if command -v curl >/dev/null; then
	curl -sS --unix-socket "$H" -H 'Content-Type: application/json' -d '{"prompt": "Hello there", "max_tokens": 2}' http://tandem/v1/completions >"$OUT" || fail "curl"
	has '"text": "Hello there"'
fi

# The end: a stream that runs is finished, a new request is refused
LAST='{"prompt": "Hello there", "max_tokens": 600, "ignore_eos": true, "stream": true}'
printf 'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' ${#LAST} "$LAST" |
	"$TOOLS/http_raw" -w 20000 "$H" >"$T/stream" 2>&1 &
tries=0
until grep -q 'Hello' "$T/stream"; do
	tries=$((tries + 1))
	[ $tries -lt 200 ] || fail "the stream does not begin"
	sleep 0.02
done
stop
wait
grep -q 'data: \[DONE\]' "$T/stream" || fail "the stream was cut off by the end"
[ ! -e "$H" ] || fail "the HTTP socket was left behind"
