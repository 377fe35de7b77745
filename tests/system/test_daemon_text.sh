# limit: 60
# What an answer looks like: deltas that follow each other, whole characters, stop strings across tokens, ends, log-probabilities, several at once.
. "$(dirname "$0")/daemon_lib.sh"
start

# The fake worker repeats the prompt, so the prompt is the answer.
raw <<'END'
greet 0
gen tag=1 text="alpha beta gamma delta " max_tokens=30
until "tag=1 finish reason=2 stop=- prompt=10 output=30"
total tag=1
# one draft a step, none, and the whole in one delta: the same answer
gen tag=2 text="alpha beta gamma delta " max_tokens=30 draft_tokens=1
until "tag=2 finish"
total tag=2
gen tag=3 text="alpha beta gamma delta " max_tokens=30 draft_tokens=0
until "drafted=0 accepted=0"
total tag=3
gen tag=4 text="alpha beta gamma delta " max_tokens=30 stream=0
expect "tag=4 accepted"
expect "tag=4 delta position=0 n=30"
expect "tag=4 finish reason=2"
total tag=4
END
[ "$(totals | sort -u | wc -l)" = 1 ] || fail "four ways, more than one answer: $(totals)"
totals | grep -q 'text="alpha beta gamma delta alpha beta gamma delta alpha beta gamma delta "$' || fail "not the prompt repeated: $(totals)"

# Characters of several tokens come whole: every text in every delta is valid UTF-8 (rawclient unpacks with that check), and the sum is right.
raw <<'END'
greet 0
gen tag=1 text="naïve € 日本語 😀 " max_tokens=22 draft_tokens=0
until "finish"
total tag=1
# the answer ends in the middle of one
gen tag=2 text="naïve € 日本語 😀 " max_tokens=9
until "finish reason=2"
total tag=2
END
totals | head -n 1 | grep -q 'text="naïve € 日本語 😀 "$' || fail "characters were torn: $(totals)"
totals | tail -n 1 | grep -q 'n=9 .*text="naïve € �"$' || fail "half a character at the end: $(totals)"

# Stop strings: inside a token, across tokens, across characters; the first that is complete counts; nothing of it is ever shown.
raw <<'END'
greet 0
gen tag=1 text="alpha beta gamma delta " max_tokens=200 stop="ma del"
until "tag=1 finish reason=1 stop=ma del"
total tag=1
gen tag=2 text="alpha beta gamma delta " max_tokens=200 stop="gamma zeta" stop="delta alpha b"
until "tag=2 finish reason=1 stop=delta alpha b"
total tag=2
gen tag=3 text="alpha beta gamma delta " max_tokens=200 stop="a"
until "tag=3 finish reason=1 stop=a"
total tag=3
gen tag=4 text="naïve € 日本語 😀 " max_tokens=200 stop="本"
until "tag=4 finish reason=1 stop=本"
total tag=4
# held back as a possible stop string, then shown after all
gen tag=5 text="alpha beta gamma delta " max_tokens=10 stop="delta Z"
until "tag=5 finish reason=2 stop=-"
total tag=5
# whole answer in one delta
gen tag=6 text="alpha beta gamma delta " max_tokens=200 stop="ma del" stream=0
until "tag=6 finish reason=1 stop=ma del"
total tag=6
wait_status "used=0 queued=0"
END
want() { # line of totals, text
	totals | sed -n "$1p" | grep -q "text=\"$2\"\$" || fail "answer $1 is not '$2': $(totals | sed -n "$1p")"
}
want 1 'alpha beta gam'
want 2 'alpha beta gamma '
want 3 ''
want 4 'naïve € 日'
want 5 'alpha beta gamma delta '
want 6 'alpha beta gam'
totals | sed -n 1p | grep -q ' n=8 ' || fail "ids go up to the token that completed the stop string: $(totals | sed -n 1p)"
! grep -q 'tag=[16] delta .*text=".*ma de' "$OUT" || fail "a part of the stop string was shown"

# Ending ids are told, not shown; ignore_eos goes on; stop ids of the request.
raw <<'END'
greet 0
gen tag=1 text="yes<|im_end|> no" max_tokens=50
until "tag=1 finish reason=1 stop=-"
total tag=1
gen tag=2 text="yes<|im_end|> no" max_tokens=5 ignore_eos=1
until "tag=2 finish reason=2"
total tag=2
gen tag=3 ids=300,301,302 max_tokens=50 stop_id=301
until "tag=3 finish reason=1 stop=- prompt=3 output=2"
total tag=3
END
totals | sed -n 1p | grep -q ',8184, text="yes"$' || fail "the ending id: $(totals | sed -n 1p)"
totals | sed -n 2p | grep -q 'n=5 ' || fail "ignore_eos: $(totals | sed -n 2p)"
totals | sed -n 3p | grep -q 'ids=300,301, ' || fail "stop id: $(totals | sed -n 3p)"

# Log-probabilities stand by their tokens; the seed is told, and counts.
raw <<'END'
greet 0
gen tag=1 ids=300,301,302 max_tokens=1 logprobs=2
until "logprobs=1 first=-0.25 top=300:-0.25:"
until "finish"
gen tag=2 ids=300,301,302 max_tokens=1 logprobs=0
until "logprobs=1 first=-0.25 top="
until "finish"
gen tag=3 ids=300,301,302 max_tokens=3 temperature=1 seed=4
until "seed=4"
total tag=3
gen tag=4 ids=300,301,302 max_tokens=3 seed=18446744073709551615
until "seed=18446744073709551615"
END
totals | grep -q 'ids=301,302,300, ' || fail "the seed does not reach the target: $(totals)"

# Several at once on one connection and a queue behind them; a cancel in the slot, one in the queue; a deadline in each.
raw <<'END'
greet 0
gen tag=1 ids=401 max_tokens=4000 ignore_eos=1 draft_tokens=0
gen tag=2 ids=402 max_tokens=4000 ignore_eos=1 draft_tokens=0
gen tag=3 ids=403 max_tokens=4000 ignore_eos=1 draft_tokens=0
gen tag=4 ids=404 max_tokens=4000 ignore_eos=1 draft_tokens=0 deadline_ms=700
gen tag=5 ids=405 max_tokens=2
gen tag=6 ids=406 max_tokens=2 deadline_ms=300
until "tag=5 accepted"
greet 1
status
expect "used=4 queued=2"
use 0
cancel tag=99 target=5
until "tag=5 finish reason=3 stop=- prompt=1 output=0"
until "tag=6 error code=deadline_exceeded text=the request's deadline has passed"
until "tag=4 error code=deadline_exceeded"
cancel tag=99 target=2
until "tag=2 finish reason=3"
cancel tag=99 target=1
cancel tag=99 target=3
until "tag=1 finish reason=3"
use 1
wait_status "used=0 queued=0"
END

# A prompt of 100 KB is tokenised beside the loop; its refusal says by how much it is too long. One that arrives later and is short is not held up.
long=$(awk 'BEGIN { for (i = 0; i < 12000; i++) printf "word%d ", i }')
raw <<END
greet 0
tokenize tag=1 text="$long"
gen tag=2 text="$long"
gen tag=3 ids=9 max_tokens=1
until "tag=3 finish"
END
raw <<END
greet 0
gen tag=2 text="$long"
expect "tag=2 error code=context_exceeded text=the prompt has "
tokenize tag=1 text="$long"
expect "tag=1 tokens n="
gen tag=2 text="$long"
cancel tag=9 target=2
expect "tag=2 error code=context_exceeded"
gen tag=2 text="$long"
close
greet 1
wait_status "used=0 queued=0"
END
stop
echo "texts, stops, ends, cancels, deadlines as they should be"
