# limit: 300
# tandem chat on a terminal (line editing, history, Ctrl-C, Ctrl-D, commands) and without one.
. "$(dirname "$0")/daemon_lib.sh"
. "$(dirname "$0")/client_lib.sh"
export XDG_STATE_HOME="$T/state" TERM=xterm LC_ALL=C.UTF-8
real
chat() { # steps
	"$TOOLS/pty_run" "$TANDEM" chat --no-think -g "$@" >"$OUT" 2>"$T/err" || fail "exit code $?: $(cat "$T/err")"
}

# A question, its answer, the figures, a new conversation, the end by Ctrl-D.
chat -n 12 -- "expect:Ctrl-D ends" "prompt:\n> " "send:How do I list files?\n" "expect:files?" "prompt:\n> " "send:/stats\n" "expect:acceptance length" \
	"expect:All 1:" "prompt:\n> " "send:/reset\n" "expect:new conversation" "prompt:\n> " "send:/nonsense\n" "expect:no command /nonsense" \
	"prompt:\n> " "send:/system Be brief.\n" "expect:is set" "prompt:\n> " "send:/help\n" "expect:/quit" "prompt:\n> " "send:^D"
# /quit ends as well.
chat -n 4 -- "prompt:\n> " "send:/quit\n"

# Ctrl-C stops the answer; the program goes on, and the next question is answered.
chat --ignore-eos -n 480 -- "prompt:\n> " "send:How do I list files?\n" "expect:files?\r\n" "more:20" "send:^C" "expect:[stopped]" "prompt:\n> " \
	"send:/stats\n" "expect:cancelled" "prompt:\n> " "send:^D"
# Ctrl-C at the prompt throws the line away, and nothing else.
chat -n 4 -- "prompt:\n> " "send:half a question" "expect:question" "send:^C" "prompt:\n> " "send:/stats\n" "expect:No answer yet" "prompt:\n> " "send:^D"
# It counts as well when it comes before the question is on its way.
chat --ignore-eos -n 480 -- "prompt:\n> " "send:How do I list files?\n^C" "prompt:\n> " "send:^D"
# That key counts also when it comes after the prompt is there and before the editor waits: reads of the terminal that begin late make it certain.
if [ "$B" != build-san ]; then # a library loaded first and the sanitizer's, which must be the first one, exclude each other
	cat >"$T/late.c" <<-'END'
		#include <dlfcn.h>
		#include <time.h>
		#include <unistd.h>
		ssize_t read(int fd, void *to, size_t n)
		{
			struct timespec late = {.tv_nsec = 100 * 1000 * 1000};
			ssize_t (*next)(int, void *, size_t) = (ssize_t (*)(int, void *, size_t))dlsym(RTLD_NEXT, "read");

			if (isatty(fd))
				nanosleep(&late, NULL);
			return next(fd, to, n);
		}
	END
	${CC:-gcc} -D_GNU_SOURCE -shared -fPIC -o "$T/late.so" "$T/late.c" -ldl || fail "late.c"
	LATE=$T/late.so
fi
"$TOOLS/pty_run" env ${LATE:+LD_PRELOAD="$LATE"} "$TANDEM" chat -n 4 -- "prompt:\n> " "send:half" "expect:half" "send:^C" "prompt:\n> " "send:/quit\n" >"$OUT" 2>"$T/err" ||
	fail "late: $(cat "$T/err")"
"$TANDEM" status >"$OUT"
shows "2 cancelled\|1 cancelled"

# The history is kept for the next time, readable by its owner alone; the arrow key brings the last line back.
[ "$(stat -c %a "$T/state/tandem/history")" = 600 ] || fail "the history is not private"
chat -n 4 -- "prompt:\n> " "send:/nonsense\n" "expect:no command" "prompt:\n> " "send:/quit\n"
chat -n 4 -- "prompt:\n> " "send:^P^P\n" "expect:no command /nonsense" "prompt:\n> " "send:/quit\n"
# A line is edited: a wrong letter taken back.
chat -n 4 -- "prompt:\n> " "send:/hellp\x7f\x7fp\n" "expect:/quit" "send:/quit\n"
# Letters of more than a byte are one key each, and bytes that are no letter are none.
chat -n 4 -- "prompt:\n> " "send:/helpäß\x7f\x7f\xff\n" "expect:/quit" "send:/quit\n"

# Two lines as one question; the conversation is remembered (its prompt grows).
chat -n 4 -- "prompt:\n> " "send:one\\\\\n" "prompt:... " "send:two\n" "prompt:\n> " "send:again\n" "expect:again" "prompt:\n> " "send:/stats\n" "expect:All 2" "prompt:\n> " "send:^D"

# Without a terminal: a line, an answer; comments of the program go to stderr.
printf 'How do I list files?\n/stats\n' | "$TANDEM" chat --no-think -g -n 12 >"$OUT" 2>"$T/err" || fail "piped: $(cat "$T/err")"
"$TANDEM" run --no-think -g -n 12 "How do I list files?" >"$T/answer"
cmp "$OUT" "$T/answer" || fail "piped chat and run differ"
grep -q "All 1:" "$T/err" || fail "no figures"
printf 'x\ny\n' | "$TANDEM" chat -n 0 >"$OUT" 2>"$T/err"
[ $? = 1 ] || fail "a failure without a terminal must show in the exit code"
one_line "invalid_argument"

# The daemon goes away in the middle of a conversation: said, and not the end of the program.
chat -n 4 -- "prompt:\n> " "send:one\n" "expect:one\r\n" "prompt:\n> " "sh:kill -TERM $PID; while [ -e $SOCK ]; do sleep 0.05; done" "send:two\n" \
	"expect:tandem chat: " "prompt:\n> " "send:^D"
while [ ! -s "$T/code" ]; do sleep 0.05; done
PID=
"$TANDEM" chat >"$OUT" 2>"$T/err" </dev/null
[ $? = 3 ] || fail "chat without a daemon"
one_line "no daemon"
