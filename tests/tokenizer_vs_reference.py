#!/usr/bin/env python3
"""Holds tandem's tokenizer against the `tokenizers` package, which is the reference.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install tokenizers xxhash
    make build/tests/tokenize_digest
    /tmp/venv/bin/python tests/tokenizer_vs_reference.py            compare; exit 1 at the first difference
    /tmp/venv/bin/python tests/tokenizer_vs_reference.py --store    also write tests/data/tokenizer.digest and tests/data/tokenizer_cases.json

Compared: 100,000 random texts with added tokens parsed and not, each decoded again with special tokens and without; 50,000 random id sequences
decoded; every text file of the repository. The digests are made here, by the reference, from texts that tests/tokenizer_random.h makes likewise;
the unit test compares the stored ones with what the C code gives, so that `make check` needs no Python. The repository's text is compared live
only, because it changes.
"""
import argparse
import json
import os
import struct
import subprocess
import sys

import xxhash
from tokenizers import Tokenizer, __version__

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TEXTS, SEQUENCES = 100000, 50000
MASK = (1 << 64) - 1

SCRIPT = [
    (0x20, 0x7E), (0xA0, 0xFF), (0x100, 0x17F), (0x180, 0x233), (0x250, 0x2AD), (0x1E00, 0x1E9B), (0x1EA0, 0x1EF9), (0x391, 0x3A1), (0x3A3, 0x3CE),
    (0x1F00, 0x1F15), (0x1F80, 0x1FB4), (0x400, 0x45F), (0x531, 0x556), (0x5D0, 0x5EA), (0x621, 0x63A), (0x904, 0x939), (0x958, 0x961), (0x985, 0x98C),
    (0x9DC, 0x9DD), (0xA59, 0xA5C), (0xB5C, 0xB5D), (0xB85, 0xB8A), (0xE01, 0xE30), (0xF40, 0xF47), (0xF49, 0xF6A), (0x10D0, 0x10F6), (0x1100, 0x1112),
    (0x1161, 0x1175), (0x11A8, 0x11C2), (0x1200, 0x1206), (0x13A0, 0x13F4), (0x1820, 0x1877), (0x3041, 0x3094), (0x30A1, 0x30FA), (0x4E00, 0x9FA5),
    (0xAC00, 0xD7A3), (0xF900, 0xFA2D), (0xFB00, 0xFB06), (0xFB1D, 0xFB36), (0xFB46, 0xFBB1), (0xFF01, 0xFFBE), (0x10400, 0x10425), (0x1D400, 0x1D454),
    (0x20000, 0x2A6D6), (0x2F800, 0x2FA1D), (0x10300, 0x1031E), (0x1D15E, 0x1D164),
]
MARK = [
    (0x300, 0x34E), (0x300, 0x345), (0x360, 0x36F), (0x483, 0x486), (0x488, 0x489), (0x591, 0x5A1), (0x5B0, 0x5B9), (0x64B, 0x655), (0x93C, 0x93C),
    (0x93E, 0x94D), (0x9BE, 0x9BE), (0x9D7, 0x9D7), (0xB3E, 0xB3E), (0xBD7, 0xBD7), (0xCD5, 0xCD6), (0xDCF, 0xDCF), (0xE31, 0xE31), (0xE34, 0xE3A),
    (0xF71, 0xF7D), (0x102E, 0x102E), (0x3099, 0x309A), (0x20D0, 0x20EA), (0xFE00, 0xFE0F), (0xFE20, 0xFE23), (0x1D165, 0x1D166), (0x1D16E, 0x1D172),
    (0x302A, 0x302F),
]
NUMBER = [
    (0x30, 0x39), (0x30, 0x39), (0x30, 0x39), (0x660, 0x669), (0x966, 0x96F), (0xB2, 0xB3), (0xB9, 0xB9), (0xBC, 0xBE), (0x2150, 0x215E),
    (0x2160, 0x2183),
    (0x2460, 0x249B), (0x3007, 0x3007), (0x3021, 0x3029), (0xFF10, 0xFF19), (0x1D7CE, 0x1D7FF), (0x10107, 0x10133), (0x1369, 0x137C),
]
OTHER = [
    (0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7E), (0xA1, 0xA9), (0x2010, 0x2027), (0x2030, 0x2052), (0x20A0, 0x20B1), (0x2100, 0x213A),
    (0x2190, 0x21FF), (0x2200, 0x22FF), (0x2500, 0x2595), (0x3001, 0x3006), (0x3008, 0x3020), (0xFE30, 0xFE46), (0, 8), (0xE, 0x1F), (0x7F, 0x84),
    (0x86, 0x9F), (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x2063), (0xFEFF, 0xFEFF), (0xFFFC, 0xFFFD), (0xE000, 0xE010), (0xF0000, 0xF0010),
    (0xFDD0, 0xFDEF), (0x1D100, 0x1D126), (0xE0020, 0xE007F), (0xAD, 0xAD),
]
EMOJI = [
    (0x1F600, 0x1F640), (0x1F300, 0x1F320), (0x1F442, 0x1F4F7), (0x1F1E6, 0x1F1FF), (0x1F3FB, 0x1F3FF), (0x200D, 0x200D), (0xFE0F, 0xFE0F),
    (0x2600, 0x2613), (0x2701, 0x2704), (0x1F910, 0x1F91E), (0x20E3, 0x20E3),
]
SPACE = [
    (0x20, 0x20), (0x20, 0x20), (0x20, 0x20), (0x9, 0x9), (0xA, 0xA), (0xB, 0xC), (0xD, 0xD), (0x1C, 0x1F), (0x85, 0x85), (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x180E, 0x180E), (0x2000, 0x200A), (0x200B, 0x200B), (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
]
LETTER, PRINTABLE = (0x61, 0x7A), (0x20, 0x7E)
ADDED = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>",
    "</think>",
    "<|fim_prefix|>", "<|vision_start|>",
]
ENDING = ["s", "t", "re", "ve", "m", "ll", "d", "S", "T", "RE", "vE", "M", "Ll", "D", "\u017f", "x", "\u212a", "l"]
NEWLINE = ["\n", "\r\n", "\r", "\n\n", " \n", "\n ", "\t\n\t", "\r\r\n"]

# Texts whose ids and decoded text are stored in tests/data/tokenizer_cases.json, each with added tokens parsed and not.
CASES = [
    "", " ", "  ", "a", "Hello, world!", "I'll don'T we'RE it\u2019s", "he'\u017f x'\u212a", "  leading and trailing  ",
    "tab\tvt\x0bff\x0cnel\x85nbsp\xa0end",
    "a\n\n\nb \n c\r\nd\r\r\n  \n", "x\u180ey \u180e \u200b\u200bz\ufeff", "12345 \u0661\u0662\u0663 \xb2\xbd\u2167\u3007",
    "e\u0301 \xe9 e\u0323\u0301 e\u0301\u0323",
    "\u1100\u1161\u11a8 \uac00\u11a8 \uac01 \u1161\u11a8", "\u0958 \u0915\u093c \u2126 \u212b \uf900 \U0002f800",
    "\u0344\u0f73\u0f75 \U0001d15e\U0001d1bb",
    "\u0300abc \u0300\u0301", "'\u0300s !\u0300x", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n",
    "<think></think><tool_call></tool_call>",
    "<|im_start|><|im_start|>|im_start|>", "<|im_start <|im_end|", "<<|mask|>>", "<tool_response><tool_respons", "a<think>e\u0301</think>\u0301",
    "e<think>\u0301",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\U0001f1e9\U0001f1ea\u2764\ufe0f", "\x00\x01\x7f", "\ufffd\uffff\U0010ffff",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!", "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645",
    "\u0928\u092e\u0938\u094d\u0924\u0947", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "for (i = 0; i < n; i++)\n\t\tx[i] += y[i] * 2;\n", "!!!???...,,,\n\n!!!\r\n", "a" * 300, " " * 300 + "x", "\n" * 100, "ab" * 200, "\u0301" * 60,
    "=" * 129,
]


class Random:
    """xorshift64*; below(n) = high half of (high half of the product * n)."""

    def __init__(self, seed):
        self.x = seed & MASK

    def below(self, n):
        x = self.x
        x ^= x >> 12
        x ^= (x << 25) & MASK
        x ^= x >> 27
        self.x = x
        return ((x * 0x2545F4914F6CDD1D & MASK) >> 32) * n >> 32

    def pick(self, items):
        return items[self.below(len(items))]

    def several(self, ranges, count):
        out = []
        for _ in range(count):
            low, high = self.pick(ranges)
            out.append(chr(low + self.below(high - low + 1)))
        return "".join(out)


def item(r):
    kind = r.below(16)
    if kind <= 1:
        return r.several([PRINTABLE], 1 + r.below(4))
    if kind <= 3:
        return (" " if kind == 2 else "") + r.several([LETTER], 1 + r.below(8))
    if kind == 4:
        return r.several(SCRIPT, 1)
    if kind == 5:
        chosen = [r.pick(SCRIPT)]
        return r.several(chosen, 1 + r.below(5))
    if kind <= 7:
        head = r.several(SCRIPT, 1) if kind == 6 else ""
        return head + r.several(MARK, 1 + r.below(4))
    if kind == 8:
        return r.several(NUMBER, 1 + r.below(3))
    if kind == 9:
        return r.several(SPACE, 1 + r.below(3))
    if kind == 10:
        chosen = [r.pick(SPACE)]
        return r.several(chosen, 1 + r.below(20))
    if kind == 11:
        return r.pick(NEWLINE)
    if kind == 12:
        return r.pick(ADDED)
    if kind == 13:
        text = r.pick(ADDED)
        start = r.below(len(text))
        return text[start:start + 1 + r.below(len(text) - start)]
    if kind == 14:
        return r.several(EMOJI, 1 + r.below(4))
    if r.below(2):
        return r.several(OTHER, 1 + r.below(3))
    return "'" + r.pick(ENDING)


def random_text(i):
    r = Random(0x9E3779B97F4A7C15 * (i + 1))
    items = r.below(24)
    if not r.below(16):
        items += 60
    return "".join(item(r) for _ in range(items))


def random_sequence(i, size):
    r = Random(0xD1B54A32D192ED03 * (i + 1))
    return [r.below(256) if r.below(2) else r.below(size) for _ in range(1 + r.below(16))]


def block(h, data, count=None):
    h.update(struct.pack("<I", len(data) if count is None else count))
    h.update(data)


def rounds(h, tokenizer, texts):
    for encoding in tokenizer.encode_batch(texts, add_special_tokens=False):
        ids = encoding.ids
        block(h, struct.pack(f"<{len(ids)}i", *ids), len(ids))
        for skip in (False, True):
            block(h, tokenizer.decode(ids, skip_special_tokens=skip).encode())


def reference_digests(path):
    tokenizer = Tokenizer.from_file(path)
    with open(path, encoding="utf-8") as f:
        data = json.load(f)
    size = 1 + max([*data["model"]["vocab"].values(), *(a["id"] for a in data["added_tokens"])])
    data["added_tokens"] = []
    plain = Tokenizer.from_str(json.dumps(data))
    h = {kind: xxhash.xxh3_64() for kind in ("texts", "encode", "plain", "decode")}
    for start in range(0, TEXTS, 5000):
        texts = [random_text(i) for i in range(start, min(start + 5000, TEXTS))]
        for text in texts:
            block(h["texts"], text.encode())
        rounds(h["encode"], tokenizer, texts)
        rounds(h["plain"], plain, texts)
    for i in range(SEQUENCES):
        ids = random_sequence(i, size)
        block(h["decode"], tokenizer.decode(ids, skip_special_tokens=bool(i & 1)).encode())
    return "".join(f"{kind} {SEQUENCES if kind == 'decode' else TEXTS} {h[kind].hexdigest()}\n" for kind in h)


def reference_cases(path):
    tokenizer = Tokenizer.from_file(path)
    with open(path, encoding="utf-8") as f:
        data = json.load(f)
    data["added_tokens"] = []
    plain = Tokenizer.from_str(json.dumps(data))
    cases = []
    for text in CASES:
        for parse_added, t in ((True, tokenizer), (False, plain)):
            ids = t.encode(text, add_special_tokens=False).ids
            cases.append({"text": text, "parse_added": parse_added, "ids": ids, "decoded": t.decode(ids, skip_special_tokens=False),
                          "skipped": t.decode(ids, skip_special_tokens=True)})
    return cases


def find_difference(tool, path):
    """The first random text (added tokens parsed) whose ids differ."""
    tokenizer = Tokenizer.from_file(path)
    for i in range(TEXTS):
        text = random_text(i)
        ours = subprocess.run([tool, path, "--text", str(i)], capture_output=True, text=True, check=True).stdout.split()
        theirs = [str(x) for x in tokenizer.encode(text, add_special_tokens=False).ids]
        if ours != theirs:
            return f"text {i}: {text!r}\n  reference {' '.join(theirs)}\n  tandem    {' '.join(ours)}"
    return "the ids are the same, the decoded text differs"


def compare_files(tool, path, files):
    """Returns the number of files that differ, and totals."""
    tokenizer = Tokenizer.from_file(path)
    out = subprocess.run([tool, path, *files], capture_output=True, check=True).stdout.decode("utf-8", "surrogateescape")
    differing = compared = n_bytes = n_ids = 0
    for line in out.splitlines():
        ours, _, _, name = line.split(" ", 3)
        with open(name, "rb") as f:
            raw = f.read()
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            theirs = "invalid"
        else:
            h = xxhash.xxh3_64()
            rounds(h, tokenizer, [text])
            theirs = h.hexdigest()
            compared += 1
            n_bytes += len(raw)
            n_ids += len(tokenizer.encode(text, add_special_tokens=False).ids)
        if ours != theirs:
            differing += 1
            print(f"DIFFERS {name}")
    return differing, compared, n_bytes, n_ids


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", default=os.path.join(ROOT, "models/tiny/tokenizer.json"))
    parser.add_argument("--tool", default=os.path.join(ROOT, "build/tests/tokenize_digest"))
    parser.add_argument("--store", action="store_true", help="write tests/data/tokenizer.digest and tokenizer_cases.json, from the reference")
    parser.add_argument("--files", nargs="*", help="compare these files instead of the repository's")
    args = parser.parse_args()

    reference = reference_digests(args.tokenizer)
    ours = subprocess.run([args.tool, args.tokenizer], capture_output=True, text=True, check=True).stdout
    if args.store:
        with open(os.path.join(ROOT, "tests/data/tokenizer.digest"), "w", encoding="utf-8") as f:
            f.write(f"# made by tests/tokenizer_vs_reference.py --store with tokenizers {__version__}; kind, count, XXH3-64\n{reference}")
        with open(os.path.join(ROOT, "tests/data/tokenizer_cases.json"), "w", encoding="utf-8") as f:
            f.write("[\n" + ",\n".join(json.dumps(c) for c in reference_cases(args.tokenizer)) + "\n]\n")
    print(reference, end="")
    failed = 0
    if ours != reference:
        print(f"DIFFERS: tandem has\n{ours}{find_difference(args.tool, args.tokenizer)}")
        failed = 1
    files = args.files
    if files is None:
        names = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, check=True).stdout.decode().split("\0")
        files = [os.path.join(ROOT, n) for n in names if n and not n.endswith(".safetensors") and os.path.isfile(os.path.join(ROOT, n))]
    differing, compared, n_bytes, n_ids = compare_files(args.tool, args.tokenizer, files)
    print(f"{compared} files, {n_bytes} bytes, {n_ids} ids: {differing} differ")
    return 1 if failed or differing else 0


if __name__ == "__main__":
    sys.exit(main())
