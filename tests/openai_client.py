#!/usr/bin/env python3
"""The `openai` Python package, unchanged, against a tandemd that serves the tiny model: chat, completion, streaming, tools, JSON schema, log-probabilities,
errors, time limits, n; over loopback and over the Unix socket.

Not part of `make check`: it needs pip and the network the first time, makes a virtual environment of its own in build/openai-venv (and says so), and starts
the tandemd of build/bin (B=FOLDER: another) with real workers on the CPU. Usage: python3 tests/openai_client.py
"""
import json, os, shutil, signal, socket, subprocess, sys, tempfile, time, traceback, urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.join(ROOT, os.environ.get("B", "build"))
VENV = os.environ.get("OPENAI_VENV", os.path.join(BUILD, "openai-venv"))


def in_venv():
    """Starts again inside the virtual environment, which is made when it is missing."""
    python = os.path.join(VENV, "bin", "python")
    if not os.path.exists(python):
        print("making the virtual environment", VENV)
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "openai"], check=True)
    os.execv(python, [python, os.path.abspath(__file__), "inside"])


if sys.argv[1:] != ["inside"]:
    in_venv()

import openai
from openai import OpenAI

try:
    import httpx2 as httpx
except ImportError:
    import httpx

WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}}, "required": ["name", "age"],
          "additionalProperties": False}
ASK = [{"role": "user", "content": "Say something."}]
PLAIN = {"chat_template_kwargs": {"enable_thinking": False}}


class Daemon:
    def __init__(self, *options):
        self.dir = tempfile.mkdtemp(prefix="tandem.")
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.http = self.dir + "/http"
        self.log = open(self.dir + "/log", "w+")
        tiny = os.path.join(ROOT, "models/tiny")
        self.p = subprocess.Popen([BUILD + "/bin/tandemd", "--tandem.socket=" + self.dir + "/s", "--tandem.runtime_dir=" + self.dir + "/run",
                                   "--model.target=" + tiny + "/target-int4", "--model.drafter=" + tiny + "/drafter-int4", "--model.name=tiny", "--engine.device=cpu",
                                   "--http.socket=" + self.http, "--http.listen=127.0.0.1:%d" % self.port, *options], stderr=self.log)
        for _ in range(150):
            try:
                urllib.request.urlopen("http://127.0.0.1:%d/health" % self.port)
                return
            except OSError:
                time.sleep(0.1)
            if self.p.poll() is not None:
                break
        self.log.seek(0)
        sys.exit("tandemd does not serve:\n" + self.log.read())

    def client(self, unix=False, **more):
        more = {"max_retries": 0, "timeout": 60, "api_key": "none", **more}
        if unix:
            return OpenAI(base_url="http://tandem/v1", http_client=httpx.Client(transport=httpx.HTTPTransport(uds=self.http)), **more)
        return OpenAI(base_url="http://127.0.0.1:%d/v1" % self.port, **more)

    def stop(self):
        self.p.send_signal(signal.SIGTERM)
        self.p.wait(60)
        shutil.rmtree(self.dir)


def refused(kind, call, code=None, param=None):
    try:
        call()
    except kind as e:
        assert code is None or e.code == code, (e.code, code)
        assert param is None or e.param == param, (e.param, param)
        return e
    raise AssertionError("it was not refused")


def models(c):
    assert [m.id for m in c.models.list()] == ["tiny"]
    assert c.models.retrieve("tiny").id == "tiny"
    refused(openai.NotFoundError, lambda: c.models.retrieve("other"), "model_not_found")


def chat(c):
    r = c.chat.completions.create(model="tiny", messages=ASK, max_tokens=12, extra_body=PLAIN)
    assert r.object == "chat.completion" and r.id.startswith("chatcmpl-") and r.choices[0].message.role == "assistant"
    assert r.choices[0].message.content and r.choices[0].finish_reason in ("stop", "length"), r
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens and r.usage.completion_tokens <= 12
    parts = [{"role": "system", "content": "Be short."}, {"role": "user", "content": [{"type": "text", "text": "Say "}, {"type": "text", "text": "something."}]}]
    assert c.chat.completions.create(model="tiny", messages=parts, max_completion_tokens=4).usage.completion_tokens <= 4


def thinking(c):
    r = c.chat.completions.create(model="tiny", messages=ASK, max_tokens=12, extra_body={"chat_template_kwargs": {"enable_thinking": True}})
    m = r.choices[0].message
    assert getattr(m, "reasoning_content", None) or m.content
    assert r.usage.completion_tokens_details.reasoning_tokens > 0


def streaming(c):
    ask = dict(model="tiny", messages=ASK, max_tokens=16, seed=5, temperature=0.7, extra_body=PLAIN)
    whole = c.chat.completions.create(**ask)
    text, last, usage = "", None, None
    for chunk in c.chat.completions.create(stream=True, stream_options={"include_usage": True}, **ask):
        assert chunk.object == "chat.completion.chunk"
        if chunk.usage:
            usage = chunk.usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            last = choice.finish_reason or last
    assert text == whole.choices[0].message.content, (text, whole)
    assert last == whole.choices[0].finish_reason and usage.completion_tokens == whole.usage.completion_tokens


def completion(c):
    r = c.completions.create(model="tiny", prompt="Once upon a time", max_tokens=8, logprobs=2)
    assert r.object == "text_completion" and r.choices[0].text
    l = r.choices[0].logprobs
    assert len(l.tokens) == len(l.token_logprobs) == len(l.top_logprobs) == r.usage.completion_tokens and all(x <= 0 for x in l.token_logprobs)
    r = c.completions.create(model="tiny", prompt=["one", "two"], max_tokens=3)
    assert [x.index for x in r.choices] == [0, 1]
    r = c.completions.create(model="tiny", prompt=[1, 2, 3], max_tokens=3)
    assert r.usage.prompt_tokens == 3
    pieces = [x.choices[0].text for x in c.completions.create(model="tiny", prompt="Once upon a time", max_tokens=8, stream=True)]
    assert "".join(pieces) == c.completions.create(model="tiny", prompt="Once upon a time", max_tokens=8).choices[0].text


def stops(c):
    free = c.completions.create(model="tiny", prompt="Once upon a time", max_tokens=24).choices[0].text
    stop = free[len(free) // 2:][:3]
    r = c.completions.create(model="tiny", prompt="Once upon a time", max_tokens=24, stop=[stop]).choices[0]
    assert r.finish_reason == "stop" and r.text == free[:free.index(stop)], (free, stop, r)


def several(c):
    r = c.chat.completions.create(model="tiny", messages=ASK, max_tokens=6, n=3, temperature=1.5, seed=1, extra_body=PLAIN)
    assert [x.index for x in r.choices] == [0, 1, 2] and len({x.message.content for x in r.choices}) > 1
    texts = ["", "", ""]
    for chunk in c.chat.completions.create(model="tiny", messages=ASK, max_tokens=6, n=3, temperature=1.5, seed=1, stream=True, extra_body=PLAIN):
        for x in chunk.choices:
            texts[x.index] += x.delta.content or ""
    assert texts == [x.message.content for x in r.choices], (texts, r)


def logprobs(c):
    r = c.chat.completions.create(model="tiny", messages=ASK, max_tokens=5, logprobs=True, top_logprobs=3, extra_body=PLAIN)
    l = r.choices[0].logprobs.content
    assert len(l) == r.usage.completion_tokens and all(len(x.top_logprobs) == 3 for x in l) and bytes(l[0].bytes)
    assert abs(l[0].top_logprobs[0].logprob - l[0].logprob) < 1e-3


def bias(c):
    r = c.completions.create(model="tiny", prompt="Once", max_tokens=4, logit_bias={"300": 100}, logprobs=0)
    assert len(set(r.choices[0].logprobs.tokens)) == 1, r


def tools(c):
    history = ASK + [{"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": {
        "name": "get_weather", "arguments": "{\"city\": \"Paris\"}"}}]}, {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}]
    r = c.chat.completions.create(model="tiny", messages=history, tools=[WEATHER], max_tokens=4, extra_body=PLAIN)
    assert r.choices[0].finish_reason in ("stop", "length", "tool_calls")
    refused(openai.BadRequestError, lambda: c.chat.completions.create(model="tiny", messages=ASK, tools=[WEATHER], tool_choice={
        "type": "function", "function": {"name": "other"}}), param="tool_choice")


def forced_tool(c):
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        ask = dict(model="tiny", messages=ASK, tools=[WEATHER], tool_choice=choice, max_tokens=160, temperature=1, seed=3, extra_body=PLAIN)
        r = c.chat.completions.create(**ask).choices[0]
        assert r.message.tool_calls, r
        call = r.message.tool_calls[0].function
        assert call.name == "get_weather"
        if r.finish_reason == "tool_calls":
            assert "city" in json.loads(call.arguments), call
        name, arguments = "", ""
        for chunk in c.chat.completions.create(stream=True, **ask):
            for x in chunk.choices[0].delta.tool_calls or []:
                name += x.function.name or ""
                arguments += x.function.arguments or ""
        assert (name, arguments) == (call.name, call.arguments), (name, arguments, call)


def json_answers(c):
    r = c.chat.completions.create(model="tiny", messages=ASK, response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}},
                                  max_tokens=160, temperature=1, seed=4, extra_body=PLAIN)
    if r.choices[0].finish_reason == "stop":
        person = json.loads(r.choices[0].message.content)
        assert set(person) == {"name", "age"} and isinstance(person["age"], int), person
    else:
        assert r.choices[0].message.content.lstrip().startswith("{"), r
    r = c.chat.completions.create(model="tiny", messages=ASK, response_format={"type": "json_object"}, max_tokens=60, extra_body=PLAIN)
    assert r.choices[0].message.content.lstrip().startswith("{"), r


def errors(c):
    ask = dict(model="tiny", messages=ASK)
    refused(openai.NotFoundError, lambda: c.chat.completions.create(model="gpt", messages=ASK), "model_not_found", "model")
    refused(openai.BadRequestError, lambda: c.chat.completions.create(temperature=-1, **ask), param="temperature")
    refused(openai.BadRequestError, lambda: c.chat.completions.create(n=99, **ask), param="n")
    refused(openai.BadRequestError, lambda: c.chat.completions.create(extra_body={"temprature": 1}, **ask), param="temprature")
    refused(openai.BadRequestError, lambda: c.chat.completions.create(model="tiny", messages=[]), param="messages")
    refused(openai.BadRequestError, lambda: c.completions.create(model="tiny", prompt="word " * 9000), "context_length_exceeded")
    refused(openai.BadRequestError, lambda: c.chat.completions.create(stream=True, logit_bias={"99999999": 1}, **ask))


def time_limits(c):
    long = dict(model="tiny", prompt="Once", max_tokens=1600, extra_body={"ignore_eos": True})
    refused(openai.APITimeoutError, lambda: c.with_options(timeout=0.05).completions.create(**long))
    long["extra_body"]["deadline_ms"] = 30
    refused(openai.APIStatusError, lambda: c.completions.create(**long), "deadline_exceeded")
    # The daemon is not busy with what was given up.
    assert c.completions.create(model="tiny", prompt="Once", max_tokens=2).usage.completion_tokens == 2


def hang_up(c):
    s = c.completions.create(model="tiny", prompt="Once", max_tokens=1600, stream=True, extra_body={"ignore_eos": True})
    next(iter(s))
    s.close()
    assert c.completions.create(model="tiny", prompt="Once", max_tokens=2).usage.completion_tokens == 2


def keys():
    with tempfile.NamedTemporaryFile("w", suffix=".ini") as f:
        f.write("[tenant alice]\napi_keys = " + "0123456789abcdef" * 2 + "\n")
        f.flush()
        d = Daemon("--config=" + f.name)
    try:
        refused(openai.AuthenticationError, lambda: d.client(api_key="wrong").models.list())
        assert d.client(api_key="0123456789abcdef" * 2).models.list().data
        assert d.client(unix=True, api_key="whatever").models.list().data
    finally:
        d.stop()


def main():
    print("openai", openai.__version__)
    failed, d = 0, Daemon()
    only = os.environ.get("ONLY", "")
    for how in ("loopback", "unix"):
        c = d.client(unix=how == "unix")
        for test in (models, chat, thinking, streaming, completion, stops, several, logprobs, bias, tools, forced_tool, json_answers, errors, time_limits, hang_up):
            if only not in test.__name__:
                continue
            try:
                test(c)
                print("ok   ", how, test.__name__, flush=True)
            except Exception:
                failed += 1
                print("FAIL ", how, test.__name__)
                traceback.print_exc(limit=-2)
    d.stop()
    if not only or only == "keys":
        try:
            keys()
            print("ok    loopback and unix keys")
        except Exception:
            failed += 1
            print("FAIL  keys")
            traceback.print_exc(limit=-2)
    print(failed, "failed")
    sys.exit(failed > 0)


main()
