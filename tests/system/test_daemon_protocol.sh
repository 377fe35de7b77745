# limit: 120
# Everything that a client can get wrong: each is answered in one line, and the daemon goes on serving.
. "$(dirname "$0")/daemon_lib.sh"
start --tandem.handshake_s=2 --limits.max_frame=64K

# ---- the connection itself: Error with tag 0, then the end
raw <<'END'
connect 0
status
expect "tag=0 error code=protocol text=the first message must be Hello"
eof
connect 0
hello version=2
expect "tag=0 error code=unsupported text=the client speaks version 2"
eof
connect 0
hello
expect "welcome version=1 server=tandemd"
hello
expect "tag=0 error code=protocol text=Hello came twice"
eof
# a frame above the cap before Hello, and after it
connect 0
bytes 01000100
expect "tag=0 error code=too_large"
eof
connect 0
bytes ffffffff
expect "error code=too_large"
eof
greet 0
bytes 01000100
expect "tag=0 error code=too_large text=the frame is larger than the 65536 bytes"
eof
# truncated, then silence or the end
connect 0
bytes 10000000aabb
close
greet 0
bytes 10000000aabb
close
# no protobuf; an empty message; lengths that lie
connect 0
frame ffffffffffff
expect "tag=0 error code=protocol"
eof
greet 0
frame
expect "tag=0 error code=protocol"
eof
greet 0
frame 08011afaffff0f
expect "tag=0 error code=protocol"
eof
# a field that nobody knows: the tag is known, the connection goes on
greet 0
frame 0805fa0700
expect "tag=5 error code=protocol text=the message asks for nothing"
status tag=6
expect "tag=6 status"
# a text that cannot be one is its own request's matter: another goes on, and so does the connection
greet 0
gen tag=6 ids=100,101 max_tokens=300 ignore_eos=1
expect "tag=6 accepted"
gen tag=7 text="ab\xffcd"
until "tag=7 error code=invalid_argument text=Generate.text is not valid UTF-8 at byte 2"
gen tag=8 chat="user:a\xc3"
until "tag=8 error code=invalid_argument text=ChatMessage.content is not valid UTF-8"
# Generate with the text "a NUL b"; its tag comes after it
frame 1a050a03610062080c
until "tag=12 error code=invalid_argument text=Generate.text holds a NUL byte"
until "tag=6 finish reason=2 stop=- prompt=2 output=300"
gen tag=6 ids=100,101 max_tokens=300 ignore_eos=1
until "tag=6 finish reason=2 stop=- prompt=2 output=300"
# without a tag of its own, or with that of an open request, nobody is meant: it is the end
gen tag=0 text="\xff"
expect "tag=0 error code=invalid_argument"
eof
greet 0
gen tag=6 ids=100,101 max_tokens=4000 ignore_eos=1
expect "tag=6 accepted"
gen tag=6 text="\xff"
until "tag=0 error code=invalid_argument"
eof
# a bad text in a message that is malformed after it
greet 0
frame 080d1a030a01ff1a7f
expect "tag=0 error code=protocol text=the message is not well-formed"
eof
END

# ---- values: Error with the request's tag, the connection goes on
raw <<'END'
greet 0
gen tag=1
expect "tag=1 error code=invalid_argument text=the request has no prompt"
gen tag=1 text=""
expect "tag=1 error code=invalid_argument text=the prompt is empty"
gen tag=1 nochat=1
expect "tag=1 error code=invalid_argument text=the chat has no message"
gen tag=1 chat="robot:hi"
expect "tag=1 error code=invalid_argument text=message 1 has the role \"robot\""
gen tag=1 chat="assistant:hi"
expect "tag=1 error code=invalid_argument"
gen tag=1 ids=1*4096
expect "tag=1 error code=context_exceeded text=the prompt has 4096 tokens; the context holds 4096"
gen tag=1 ids=5,100000
expect "tag=1 error code=invalid_argument text=prompt token 2 is 100000; ids go from 0 to"
gen tag=1 ids=-1
expect "tag=1 error code=invalid_argument text=prompt token 1 is -1"
gen tag=1 ids=1 max_tokens=0
expect "tag=1 error code=invalid_argument text=max_tokens is 0; it must be 1 or more"
gen tag=1 ids=1 max_tokens=-5
expect "text=max_tokens is -5"
gen tag=1 ids=1 temperature=nan
expect "error code=invalid_argument text=temperature is nan; it must be from 0 to 100"
gen tag=1 ids=1 temperature=inf
expect "text=temperature is inf"
gen tag=1 ids=1 temperature=-0.1
expect "text=temperature is -0.1"
gen tag=1 ids=1 top_p=0
expect "text=top_p is 0; it must be above 0 and at most 1"
gen tag=1 ids=1 top_p=1.5
expect "text=top_p is 1.5"
gen tag=1 ids=1 top_p=nan
expect "text=top_p is nan"
gen tag=1 ids=1 min_p=1
expect "text=min_p is 1; it must be at least 0 and below 1"
gen tag=1 ids=1 min_p=-1
expect "text=min_p is -1"
gen tag=1 ids=1 top_k=-1
expect "text=top_k is -1"
gen tag=1 ids=1 repetition_penalty=0
expect "text=repetition_penalty is 0"
gen tag=1 ids=1 repetition_penalty=11
expect "text=repetition_penalty is 11"
gen tag=1 ids=1 presence_penalty=2.5
expect "text=presence_penalty is 2.5; it must be from -2 to 2"
gen tag=1 ids=1 frequency_penalty=nan
expect "text=frequency_penalty is nan"
gen tag=1 ids=1 logprobs=21
expect "text=logprobs is 21; it must be from 0 to 20"
gen tag=1 ids=1 logprobs=-1
expect "text=logprobs is -1"
gen tag=1 ids=1 draft_tokens=16
expect "text=draft_tokens is 16"
gen tag=1 ids=1 draft_tokens=-1
expect "text=draft_tokens is -1"
gen tag=1 ids=1 bias=99999:1
expect "text=logit_bias names token 99999"
gen tag=1 ids=1 bias=3:nan
expect "text=the logit_bias of token 3 is nan"
gen tag=1 ids=1 bias=3:101
expect "text=the logit_bias of token 3 is 101"
gen tag=1 ids=1 bias=3:1*301
expect "text=logit_bias has 301 entries; 300 are allowed"
gen tag=1 ids=1 stop_id=99999
expect "text=stop_token_ids names token 99999"
gen tag=1 ids=1 stop_id=5*25
expect "text=25 stop_token_ids are given; 24 are allowed"
gen tag=1 ids=1 stop=""
expect "text=stop string 1 has 0 bytes; it must have 1 to 256"
gen tag=1 ids=1 stop=a stop=b stop=c stop=d stop=e stop=f stop=g stop=h stop=i stop=j stop=k stop=l stop=m stop=n stop=o stop=p stop=q
expect "text=17 stop strings are given; 16 are allowed"
tokenize tag=2
expect "tag=2 error code=invalid_argument text=nothing to tokenise"
detokenize tag=2 ids=5,99999
expect "tag=2 error code=invalid_argument text=token 2 is 99999"
cancel tag=9 target=77
expect "tag=9 error code=not_found"
cancel tag=0 target=77
resume tag=3 request=12345 key=aaaaaaaaaaaaaaaa position=0
expect "tag=3 error code=not_found"
# and after all that, an answer
gen tag=4 ids=100,101,102 max_tokens=5
expect "tag=4 accepted request="
until "finish reason=2"
total tag=4
# a tag that is in use
gen tag=5 ids=100,101 max_tokens=4000 ignore_eos=1
expect "tag=5 accepted"
gen tag=5 ids=100
until "tag=0 error code=protocol text=tag 5 belongs to a request that is still open"
eof
greet 0
gen tag=0 ids=1
expect "tag=0 error code=protocol text=tag 0 belongs to the connection"
eof
END
totals | grep -q 'n=5 gap=0 ids=100,101,102,100,101, ' || fail "the answer is not the prompt repeated: $(totals)"

# A stop string of 257 bytes, of 256, and a prompt that has one token less than the context.
long=$(printf '%0257d' 0)
raw <<END
greet 0
gen tag=1 ids=1 stop=$long
expect "text=stop string 1 has 257 bytes"
gen tag=1 ids=1 stop=${long#0} max_tokens=1
expect "tag=1 accepted"
until "finish reason=2"
gen tag=2 ids=7*4095
expect "tag=2 accepted request="
until "finish reason=2"
total tag=2
END
totals | grep -q 'n=1 gap=0 ids=7, ' || fail "a full context gives one token: $(totals)"

# A connection that says nothing, or half a Hello, is told and closed; so is one that says Hello and nothing more not.
raw <<'END'
connect 0
connect 1
bytes 0a00
greet 2
use 0
expect "tag=0 error code=deadline_exceeded text=no Hello within 2 s"
eof
use 1
expect "tag=0 error code=deadline_exceeded"
eof
use 2
silence 500
status
expect "status state=ready"
END

# Good requests with some bits turned: whatever becomes of them, the daemon is there afterwards, and its slots are free.
raw <<'END'
noise 1500 seed=11
greet 0
wait_status "state=ready slots=4 used=0 queued=0"
gen tag=4 ids=100,101,102 max_tokens=5
until "finish reason=2"
END
stop
echo "all refusals are clear, the daemon goes on"
