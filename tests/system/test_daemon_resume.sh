# limit: 60
# A stream that was torn is taken up again, at any position, running or ended, without a token lost or twice; not with a wrong key, not for ever.
. "$(dirname "$0")/daemon_lib.sh"
start --tandem.resume_s=2

raw <<'END'
greet 0
gen tag=1 text="naïve € alpha beta gamma delta " max_tokens=100 logprobs=1
until "finish"
total tag=1
END
whole=$(totals)
text() { sed 's/.* text=//'; }

# Ended: from the start, the middle, the end.
for at in 0 1 7 50 99 100; do
	raw <<-END
	greet 0
	gen tag=1 text="naïve € alpha beta gamma delta " max_tokens=100 logprobs=1
	until "tag=1 finish"
	greet 1
	resume tag=5 position=$at
	expect "tag=5 accepted"
	until "tag=5 finish reason=2 stop=- prompt=16 output=100"
	total tag=5
	END
	want=$(echo "$whole" | sed 's/.*ids=\([^ ]*\).*/\1/' | cut -d, -f$((at + 1))-)
	got=$(totals | sed 's/.*ids=\([^ ]*\).*/\1/')
	[ $at = 100 ] || [ "$got" = "$want" ] || fail "resumed at $at: $got instead of $want"
	case "$(echo "$whole" | text)" in *"$(totals | text | cut -c 2-)") ;; *) fail "resumed at $at: the text is no end of the whole: $(totals)" ;; esac
done

# Hung up in the middle: what was committed stays, the rest is made then. Also after a hang-up in the queue of one who never started.
raw <<'END'
greet 0
gen tag=1 text="naïve € alpha beta gamma delta " max_tokens=100 draft_tokens=0 logprobs=1
until "position=19"
close
sleep 300
greet 1
status
expect "used=0 queued=0"
resume tag=2 position=0
expect "tag=2 accepted"
until "tag=2 finish reason=2 stop=- prompt=16 output=100"
total tag=2
END
[ "$(totals)" = "$whole" ] || fail "resumed after a hang-up: $(totals) instead of $whole"

# While it runs, from another connection: the old one is told, the new one goes on.
raw <<'END'
greet 0
gen tag=1 text="naïve € alpha beta gamma delta " max_tokens=100 draft_tokens=0 logprobs=1
until "position=9"
greet 1
resume tag=7 position=10
expect "tag=7 accepted"
until "tag=7 finish reason=2"
total tag=7
use 0
until "tag=1 error code=closed text=the request was resumed from elsewhere"
silence 100
END
[ "$(totals | sed 's/.*ids=\([^ ]*\).*/\1/')" = "$(echo "$whole" | sed 's/.*ids=\([^ ]*\).*/\1/' | cut -d, -f11-)" ] || fail "resumed while running: $(totals)"

# A non-streaming one; refusals; the end of remembering.
raw <<'END'
greet 0
gen tag=1 text="naïve € alpha beta gamma delta " max_tokens=100 stream=0 draft_tokens=0 logprobs=1
expect "accepted"
close
greet 1
resume tag=2 position=0 key=0123456789abcdef
expect "tag=2 error code=not_found"
resume tag=2 position=0 key=short
expect "tag=2 error code=not_found"
resume tag=2 position=101
expect "tag=2 error code=invalid_argument text=the position is 101"
resume tag=2 position=0
expect "tag=2 accepted"
until "tag=2 finish reason=2"
total tag=2
sleep 2600
resume tag=3 position=0
expect "tag=3 error code=not_found text=there is no such request to resume"
END
[ "$(totals)" = "$whole" ] || fail "resumed without streaming: $(totals)"
stop
echo "resumed everywhere with the same answer"
