#!/usr/bin/env python3
"""What tokenisers must give on hard text: small ones with the published pre-tokenisers, and Gemma's own.

For developers only. Environment: `pip install -r tests/reference/requirements.txt sentencepiece protobuf`.

  byte-level LLAMA_CPP   tests/fixtures/tokenizers/NAME/: a byte-level BPE of a few hundred merges behind each model's
                         published normaliser and pre-tokeniser, as tokenizer.json and as llama.cpp's converter writes
                         it (vocabulary only), and Hugging Face's ids of the texts. The released vocabularies are large;
                         what is the models' own and easily got wrong is what stands before the merges
  splits                 tests/fixtures/tokenizers/splits.json: Hugging Face's ids of the texts with the vocabulary of
                         gpt-2 behind the pre-tokenisers of further models
  gemma GGUF             tests/fixtures/tokenizers/gemma3.json: the ids of Gemma 3's whole vocabulary, which comes from
                         a GGUF file (models/gemma3-270m.toml)

  gemma4 LLAMA_CPP       tests/fixtures/tokenizers/gemma4: a small SentencePiece BPE with merges, as llama.cpp's converter
                         writes Gemma 4's, and Hugging Face's ids of the texts

  templates LLAMA_CPP    tests/fixtures/tokenizers/templates.json: what transformers makes of conversations with the
                         published chat templates that lie in llama.cpp's repository

The texts are in tests/fixtures/tokenizers/texts.json; ids are in their order, without special tokens added.

Gemma. The vocabulary is a SentencePiece model. It is put together again from the file and checked two ways: by
sentencepiece itself, and by the tokenizer.json that transformers' converter makes of such a model, whose ids are the
fixture. They agree but where text spells a control token (transformers takes it for that token) or holds a literal
U+2581 (transformers matches runs of it before spaces become such; sentencepiece after).
"""

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers.convert_slow_tokenizer import generate_merges
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX as QWEN_2
from transformers.models.qwen3_5.tokenization_qwen3_5 import PRETOKENIZE_REGEX as QWEN_3_5

from real_model_fixtures import CASES, CONTROL, TOPICS, USER_DEFINED, everyday_session, gemma_model

OUT = Path(__file__).resolve().parent.parent / "fixtures" / "tokenizers"

# ---------------------------------------------------------------------------------------------------------------
# the texts
# ---------------------------------------------------------------------------------------------------------------

MORE = [
    # Case and contractions: where a capital letter, a mark or an apostrophe starts another word.
    "camelCaseHTTPServer XMLHttpRequest iOS McDonald's O'Neill'S", "HELLOworld helloWORLD HeLLo", "IT'S it'S It'S 'Tis 'twas",
    "y'all'd've", "'re 've 'll 'd 'm 's 't", "rock'n'roll", "\u01c5ungla \u01c8ubav \u02b0\u02b2 \u00aa\u00ba", "\u017fhe'\u017f",
    "'\u017fo", "\u00df\u1e9e", "\u0391\u03a3 \u03b1\u03c2", "DON'T Don'T don'T", "a'b'c'd", "''s", "it's'", "\u2019s \u2019S",
    # Marks: on letters, on digits, on spaces, alone, many.
    "e\u0301\u0302\u0303 o\u0308\u0304", "\u0301 alone", "1\u0301 2\u20e3", " \u0308x", "q\u0307\u0323 q\u0323\u0307",
    "\u1112\u1161\u11ab\u1100\u1173\u11af", "\u00c5 \u212b A\u030a", "Z\u0334\u0335a\u0336\u0337l\u0338g\u0321o\u0322",
    "\u0e01\u0e33\u0e44\u0e23 \u0e19\u0e49\u0e33", "\u0915\u094d\u200d\u0937 \u0915\u094d\u200c\u0937", "\u0b95\u0bcd\u0bb7 \u0ba8\u0bbf",
    "\u0642\u064f\u0631\u0652\u0622\u0646 \ufef7\ufefb", "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd", "\u1e69 s\u0323\u0307 s\u0307\u0323",
    "\ufb00\ufb03\u00bd\u2460\u337f", "\u0958 \u0915\u093c", "\u2126 \u03a9 \u212a K",
    # Numbers of one to seven digits, with signs and groups.
    "1 12 123 1234 12345 123456 1234567", "12345678901234567890", "1,234,567.89 -1.5e-10 +42", "\u0661\u0662\u0663\u0664\u0665 \u17e1\u17e2",
    "1st2nd3rd", "IPv4 192.168.100.200:8080", "2024-05-01T09:30:00Z", "\u2160\u2161\u2162\u2163", "\u00b9\u00b2\u00b3\u2074", "1\u20442 \u00be",
    "0.1.2.3", "$1,000 \u20ac2.000 \u00a33'000", "\U0001d7ce\U0001d7cf\U0001d7d0 \U0001d49c\U0001d4b7",
    # Spaces and breaks in every order.
    " a", "  a", "   a", "a ", "a  ", "\n a", "\n\n a", " \na", "  \n  a", "a\n", "a \n", "a\n\n\n", "\ta", " \ta", "\t a", "\t\t\ta",
    "a\r", "a\r\n", "\r\r\n\n", "\n\r\n", "a \r\n b", "a\n\n b\n\n  c\n\n\n   d", "a\t\tb\t c \t", "\u3000a\u3000\u3000b", "\u00a0\u00a0a",
    "\u2003\u2009\u200a", "\u2028\u2029", "\x0b\x0c\x1c\x1d\x1e\x1f", "\x85a", " " * 7 + "\n" + " " * 8 + "x", "x" + " " * 31 + "y",
    "x" + " " * 32 + "y", "x" + " " * 33 + "y", "\n" * 31 + "x", "\n" * 32 + "x", "\t" * 33, " \t" * 9, "\n " * 9, " " * 70 + "z",
    # Literal SentencePiece spaces and byte tokens.
    "\u2581", "\u2581a", "a\u2581b", " \u2581\u2581x", "\u2581\u2581\u2581", "a \u2581 b", "<0x0A>", "<0xFF> <0x09>", "\u0120a \u010a",
    # Punctuation that takes a break or a slash along.
    "a.\nb", "a./b", "//\n/*\n*/", "http://a/b//c", "?!\n\n", "...\r\n", "a;\n\n\tb", "}\n\n}\n", "--\n--", "/\n/", "\\n \\t", "::/::",
    "!@#$%^&*()_+-=[]{}|;':\",./<>?`~", "\u00a1\u00bf\u00ab\u00bb\u2039\u203a", "\u3001\u3002\u300c\u300d\uff01\uff1f", "\u2190\u2191\u2192\u2193 \u2200x\u2208\u2124",
    "=> -> <- |> ::= := != === !== ??=", "a_b __init__ _x_ -y-", "#hashtag @mention /command", "e.g. i.e. Ph.D. U.S.A.", "\u00a9\u00ae\u2122\u00b0",
    # Code of several languages.
    "if __name__ == '__main__':\n    main()\n", "\tfor i in range(10):\n\t\tprint(f'{i:03d}')\n\n\n", "let x: Vec<&'static str> = vec![];",
    "const f = async () => { await g?.(`${h}`); };", "#include <stdio.h>\nint main(void)\n{\n\treturn 0;\n}\n", "SELECT\n  a,\n  b\nFROM t;\n",
    "<p>\n  <b>bold</b> <i>it</i>\n</p>\n<table><tr><td>1</td></tr></table>", "{\"a\":{\"b\":[1,2,{\"c\":null}]}}", "$ git commit -m \"x\" && ls -la | wc -l",
    "x = y<<2 | z>>3 & ~w ^ 0b1010", "# Title\n\n- item 1\n- item 2\n  1. sub\n\n> quote\n\n```py\ncode\n```\n", "\\begin{align}\n  a &= b \\\\\n\\end{align}",
    # Emoji and other scripts, run together.
    "\U0001f469\U0001f3fd\u200d\U0001f4bb\U0001f469\u200d\u2764\ufe0f\u200d\U0001f48b\u200d\U0001f468", "\u263a\ufe0f\u2639\ufe0e",
    "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f", "9\ufe0f\u20e3#\ufe0f\u20e3", "\U0001f600a\U0001f600 b \U0001f600",
    "\u4e2d\u6587English\u6df7\u5408123\u6d4b\u8bd5", "\u3053\u3093\u306b\u3061\u306f\u3001\u4e16\u754c\u3002\u30ab\u30bf\u30ab\u30ca\u30fc", "\U00020000\U0002a6d6",
    "\uc548\ub155 \ud558\uc138\uc694\u3131\u314f", "\u10d2\u10d0\u10db\u10d0\u10e0\u10ef\u10dd\u10d1\u10d0 \u0540\u0561\u0575", "\u1203\u120e \u13a3\u13b3\u13a9",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u1019\u103c\u1014\u103a\u1019\u102c", "\u0c28\u0c2e\u0c38\u0c4d\u0c24\u0c47 \u0d28\u0d2e\u0d38\u0d4d\u0d15\u0d3e\u0d30\u0d02",
    "\u0406\u0407\u0490 \u0451\u0436", "Ti\u1ebfng Vi\u1ec7t Tie\u0302\u0301ng", "\U00010330\U00010331 \U0001f130",
    # Characters of no use.
    "\x00", "\x00\x00a\x00", "\x7f\x80\x9f", "\ufeffa", "\u200b\u200c\u200d\u2060", "\u00ad soft\u00adhyphen", "\ufffe\uffff\U0010ffff",
    "\u061c\u2066x\u2069", "\ufff9\ufffa\ufffb",
    # Special tokens of all the models, whole and broken.
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>", "<|start|>user<|message|>Hi<|end|><|start|>assistant<|channel|>final",
    "[gMASK]<sop><|system|>\nx<|user|>\ny<|assistant|>\n", "]~!b[]~b]system\nx[e~[\n]~b]ai\n", "<bos><start_of_turn>user\nHi<end_of_turn>\n",
    "<think>\nhm\n</think>\n\nyes", "<think", "</think>>", "<tool_call>{}</tool_call>", "<| endoftext |>", "<|endoftext|>\n\n", "<|end|", "[gMASK ]<sop", "<unused7><mask>",
    # Long words.
    "Donaudampfschifffahrtselektrizit\u00e4tenhauptbetriebswerkbauunterbeamtengesellschaft", "pneumonoultramicroscopicsilicovolcanoconiosis" * 3,
    "x" * 300, "\u6f22" * 60, "ab1" * 50, "\U0001f600" * 20, "A" * 40 + "a" * 40, "1" * 100, "palimpsest palimpsests Palimpsest",
    "a palimpsest of a palimpsest",
]


def texts() -> list[str]:
    rng = random.Random(7)
    prose = [" ".join(text for _, text in everyday_session(rng, topic)) for topic in sorted(TOPICS)]
    found = list(dict.fromkeys([*CASES, *MORE, *prose]))
    found += [text + other for text, other in zip(rng.sample(MORE, 12), rng.sample(CASES, 12))]
    return found


def write(path: Path, content) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, separators=(",", ":")) + "\n")


# ---------------------------------------------------------------------------------------------------------------
# byte-level
# ---------------------------------------------------------------------------------------------------------------

# Llama 3 and GLM 4 to 4.7; GPT-4o's, which GPT-OSS and MiniMax-M2 have. llama.cpp quotes them from the released files.
LLAMA_3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
           r"|\s+(?!\S)|\s+")
GPT_4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
          r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
GPT_2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)

QWEN = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
THINK = ["<think>", "</think>"]
GLM = ["<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>", "<|assistant|>",
       "<|observation|>"]

# Name of the pre-tokeniser: (class for the converter, words, NFC, ignore_merges, special tokens, other added tokens).
# ignore_merges of gpt-4o: transformers' script that made GPT-OSS's file is a TikTokenConverter, which sets it.
BYTE_LEVEL = {
    "gpt-2": ("LlamaForCausalLM", None, False, False, ["<|endoftext|>"], []),
    "smollm": ("LlamaForCausalLM", "digits", False, False, QWEN, []),
    "llama-bpe": ("LlamaForCausalLM", LLAMA_3, False, True,
                  ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"], []),
    "qwen2": ("Qwen3ForCausalLM", QWEN_2, True, False, QWEN, ["<tool_call>", "</tool_call>", *THINK]),
    "qwen35": ("Qwen3_5ForCausalLM", QWEN_3_5, True, False, QWEN, ["<tool_call>", "</tool_call>", *THINK]),
    "gpt-4o": ("GptOssForCausalLM", GPT_4O, False, True,
               ["<|startoftext|>", "<|endoftext|>", "<|return|>", "<|channel|>", "<|start|>", "<|end|>", "<|message|>"], []),
    "glm4": ("Glm4MoeForCausalLM", LLAMA_3, False, True, GLM, THINK),
    "chatglm-bpe": ("LlamaForCausalLM", LLAMA_3, False, False, GLM, []),
    "minimax-m2": ("MiniMaxM2ForCausalLM", GPT_4O, False, False, ["]!p~[", "]~!b[", "]~b]", "[e~["], THINK),
}

# Expressions of further models, one after another, as llama.cpp has them: of Mistral's and Seed-Coder's tokenizer.json,
# of Kimi's tokenization_kimi.py, of DeepSeek's.
TEKKEN = GPT_4O.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "").replace(r"\p{N}{1,3}", r"\p{N}")
SEED_CODER = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+"
              r"|\s+(?!\S)|\s+")
KIMI_K2 = r"[\p{Han}]+|" + GPT_4O.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]").replace(r"[\r\n/]*", r"[\r\n]*")
CASED = (
    "[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-"
    "\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-"
    "\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-"
    "\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-"
    "\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-"
    "\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-"
    "\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-"
    "\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943]+"
)
DEEPSEEK_LLM = ["[\r\n]", rf"\s?{CASED}", "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", r"\s+$",
                "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}+"]
DEEPSEEK_CODER = ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_LLM[4], r"\p{N}"]
DEEPSEEK_V3 = [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
               r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
               r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""]

# Name of the pre-tokeniser: (words, NFC, ignore_merges), tested with the vocabulary of gpt-2.
SPLITS = {
    "olmo": (None, True, False), "command-r": ("digits", True, False), "tekken": ([TEKKEN], False, True),
    "hunyuan": ([QWEN_2], False, False), "kimi-k2": ([KIMI_K2], False, False), "seed-coder": ([SEED_CODER], False, False),
    "deepseek-llm": (DEEPSEEK_LLM, False, False), "deepseek-coder": (DEEPSEEK_CODER, False, False),
    "deepseek-v3": (DEEPSEEK_V3, False, False),
}
MERGES = 1500
# A token that no merges lead to: whole words that are tokens are taken as such only where the file says so.
UNREACHABLE = "\u0120palimpsest"


def check_published(checkout: Path) -> None:
    """Exits where llama.cpp does not quote an expression as that of a released tokenizer.json."""
    source = (checkout / "src" / "llama-vocab.cpp").read_text()
    for name, regex in {"llama-bpe": LLAMA_3, "gpt-4o": GPT_4O, "qwen2": QWEN_2, "qwen35": QWEN_3_5,
                        "tekken": TEKKEN}.items():
        if regex.replace("\\", "\\\\") not in source:
            sys.exit(f"error: {checkout}: src/llama-vocab.cpp does not quote the expression of {name}")


def train(words, nfc: bool, ignore_merges: bool, special: list[str], added: list[str], corpus: list[str]) -> Tokenizer:
    """A small vocabulary behind a published pre-tokeniser."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    if words is None:
        tokenizer.pre_tokenizer = GPT_2
    elif words == "digits":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT_2])
    else:
        regexes = [words] if isinstance(words, str) else words
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(regex), behavior="isolated", invert=False) for regex in regexes]
            + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    # Learned from the texts in one piece, so that merges lead across every border: a word that is cut elsewhere shows.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=len(alphabet) + MERGES, initial_alphabet=alphabet, show_progress=False)
    whole = Tokenizer(models.BPE())
    whole.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    whole.train_from_iterator(corpus, trainer)
    content = {**json.loads(tokenizer.to_str()), "model": {
        **json.loads(whole.to_str())["model"], "ignore_merges": ignore_merges}}
    content["model"]["vocab"][UNREACHABLE] = len(content["model"]["vocab"])
    probe = lambda ignore: Tokenizer.from_str(json.dumps(  # noqa: E731
        {**content, "model": {**content["model"], "ignore_merges": ignore}})).encode(" palimpsest").ids
    if probe(True) == probe(False):
        sys.exit("error: the vocabulary does not tell whether merges are ignored; give it fewer of them")
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in added])
    return tokenizer


def run_splits(args: argparse.Namespace) -> None:
    corpus = [text for text in texts() if "palimpsest" not in text and len(text) < 120]
    of_gpt_2 = json.loads((OUT / "gpt-2" / "tokenizer.json").read_text())["model"]["vocab"]
    found = {"gpt-2": json.loads((OUT / "gpt-2" / "ids.json").read_text())}
    for name, (words, nfc, ignore_merges) in SPLITS.items():
        tokenizer = train(words, nfc, ignore_merges, ["<|endoftext|>"], [], corpus)
        if json.loads(tokenizer.to_str())["model"]["vocab"] != of_gpt_2:
            sys.exit("error: the vocabulary is not that of gpt-2; make both anew")
        ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts()]
        if ids in found.values():
            sys.exit(f"error: no text tells {name} from another")
        found[name] = ids
        print(f"{name}: {len(ids)} texts, {sum(map(len, ids))} tokens")
    del found["gpt-2"]
    write(OUT / "splits.json", found)


def run_byte_level(args: argparse.Namespace) -> None:
    from gguf_fixtures import Converter
    from transformers import PreTrainedTokenizerFast
    check_published(args.llama_cpp)
    converter = Converter(args.llama_cpp)
    # The merges must not learn UNREACHABLE.
    corpus = [text for text in texts() if "palimpsest" not in text and len(text) < 120]
    found = {}
    write(OUT / "texts.json", texts())
    for name, (architecture, words, nfc, ignore_merges, special, added) in BYTE_LEVEL.items():
        tokenizer, out = train(words, nfc, ignore_merges, special, added, corpus), OUT / name
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / name
            # The vocabulary is padded, as released models' embeddings are.
            config = dict(architectures=[architecture], vocab_size=tokenizer.get_vocab_size() + 5, num_hidden_layers=1,
                          max_position_embeddings=64, hidden_size=8, intermediate_size=8, num_attention_heads=1,
                          num_key_value_heads=1, rms_norm_eps=1e-6, mtp_num_hidden_layers=1, rotary_dim=4, head_dim=8,
                          sliding_window=8, linear_conv_kernel_dim=4, linear_key_head_dim=4, linear_num_key_heads=1,
                          linear_num_value_heads=1, linear_value_head_dim=4)
            PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=special[0]).save_pretrained(folder)
            write(folder / "config.json", config)
            converter.run(folder, folder / "vocab.gguf", name, "--vocab-only", "--outtype", "f32", own_vocab=True)
            write(out / "tokenizer.json", json.loads((folder / "tokenizer.json").read_text()))
            (out / "vocab.gguf").write_bytes((folder / "vocab.gguf").read_bytes())
            saved = Tokenizer.from_file(str(folder / "tokenizer.json"))
        ids = [saved.encode(text, add_special_tokens=False).ids for text in texts()]
        write(out / "ids.json", ids)
        for other, theirs in found.items():
            if BYTE_LEVEL[other][1:4] != BYTE_LEVEL[name][1:4] and not sum(a != b for a, b in zip(ids, theirs)):
                sys.exit(f"error: no text tells {other} and {name} apart")
        found[name] = ids
        print(f"{name}: {len(ids)} texts, {sum(map(len, ids))} tokens, {saved.get_vocab_size()} in the vocabulary")


# ---------------------------------------------------------------------------------------------------------------
# gemma
# ---------------------------------------------------------------------------------------------------------------



def gemma_tokenizer(model, types: list[int]) -> Tokenizer:
    """The tokenizer.json of a Gemma model as transformers' converter makes it."""
    vocab = {piece.piece: at for at, piece in enumerate(model.pieces)}
    merges = generate_merges(vocab, {piece.piece: piece.score for piece in model.pieces})
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_tokens([AddedToken(piece.piece, normalized=False, special=kind == CONTROL)
                          for piece, kind in zip(model.pieces, types) if kind in (CONTROL, USER_DEFINED)])
    return tokenizer


def run_gemma4(args: argparse.Namespace) -> None:
    from gguf_fixtures import Converter
    from transformers import GemmaTokenizer
    corpus = [text.replace(" ", "\u2581") for text in texts() if len(text) < 120]
    learned = Tokenizer(models.BPE())
    learned.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=900, limit_alphabet=150, show_progress=False))
    learned = json.loads(learned.to_str())["model"]
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    pieces = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *learned["vocab"]]
    vocab = {piece: at for at, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = GemmaTokenizer(vocab=vocab, merges=[tuple(merge) for merge in learned["merges"]])
    tokenizer.add_special_tokens({"extra_special_tokens": ["<|turn>", "<turn|>"]})
    out = OUT / "gemma4"
    out.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "gemma4"
        tokenizer.save_pretrained(folder)
        write(folder / "config.json", dict(
            architectures=["Gemma4ForCausalLM"], vocab_size=len(tokenizer), num_hidden_layers=1, head_dim=8, hidden_size=8,
            max_position_embeddings=64, intermediate_size=8, num_attention_heads=1, num_key_value_heads=1,
            rms_norm_eps=1e-6, num_kv_shared_layers=0, layer_types=["full_attention"], global_head_dim=8, moe_intermediate_size=8,
            sliding_window=8, rope_parameters=dict(
                full_attention=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=1.0),
                sliding_attention=dict(rope_type="default", rope_theta=1e4))))
        Converter(args.llama_cpp).run(folder, out / "vocab.gguf", "default", "--vocab-only", own_vocab=True)
        saved = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = [saved.encode(text, add_special_tokens=False).ids for text in texts()]
    write(out / "ids.json", ids)
    print(f"gemma4: {len(ids)} texts, {sum(map(len, ids))} tokens")


def run_gemma(args: argparse.Namespace) -> None:
    from sentencepiece import SentencePieceProcessor
    model, types = gemma_model(args.gguf)
    tokenizer, reference = gemma_tokenizer(model, types), SentencePieceProcessor(model_proto=model.SerializeToString())
    control = [model.pieces[at].piece for at in range(4)]
    ids, exempt = [], 0
    for text in texts():
        ids.append(tokenizer.encode(text, add_special_tokens=False).ids)
        if ids[-1] == reference.encode(text):
            continue
        if not ("\u2581" in text or any(token in text for token in control)):
            sys.exit(f"error: transformers' conversion and sentencepiece disagree about {text!r}")
        exempt += 1
    write(OUT / "gemma3.json", ids)
    print(f"gemma3: {len(ids)} texts, sentencepiece gives the same for all but {exempt} with control tokens or U+2581")


# ---------------------------------------------------------------------------------------------------------------
# templates
# ---------------------------------------------------------------------------------------------------------------

TEMPLATES = ["GLM-4.6", "GLM-4.7-Flash", "HuggingFaceTB-SmolLM3-3B", "MiniMax-M2", "Qwen-Qwen2.5-7B-Instruct",
             "Qwen-Qwen3-0.6B", "Qwen3-Coder", "Qwen3.5-4B", "google-gemma-2-2b-it", "meta-llama-Llama-3.1-8B-Instruct",
             "meta-llama-Llama-3.2-3B-Instruct", "meta-llama-Llama-3.3-70B-Instruct", "openai-gpt-oss-120b"]
USER, ASSISTANT = {"role": "user", "content": " Where is the <b>cat</b>? "}, {"role": "assistant", "content": "On the mat."}
SYSTEM = {"role": "system", "content": "Be brief."}
CONVERSATIONS = [[USER], [SYSTEM, USER], [SYSTEM, USER, ASSISTANT, {"role": "user", "content": "And \u201cthe dog\u201d?\n"}]]


def run_templates(args: argparse.Namespace) -> None:
    from datetime import datetime

    from transformers.utils.chat_template_utils import _compile_jinja_template
    found = []
    for name in TEMPLATES:
        template = _compile_jinja_template((args.llama_cpp / "models" / "templates" / f"{name}.jinja").read_text())
        for messages in CONVERSATIONS:
            if messages[0] is SYSTEM and "gemma" in name:
                continue  # has no system role
            rendered = template.render(
                messages=messages, add_generation_prompt=True, bos_token="<B>", eos_token="<E>", tools=None, documents=None,
                strftime_now=lambda form: datetime(2025, 1, 1, 12).strftime(form))
            found.append({"template": name, "messages": messages, "rendered": rendered})
    write(OUT / "templates.json", found)
    print(f"{len(found)} conversations with {len(TEMPLATES)} templates")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("byte-level")
    command.add_argument("llama_cpp", type=Path, help="root of a checkout of llama.cpp")
    command.set_defaults(run=run_byte_level)
    command = commands.add_parser("splits")
    command.set_defaults(run=run_splits)
    command = commands.add_parser("gemma")
    command.add_argument("gguf", type=Path, help="the GGUF file of models/gemma3-270m.toml")
    command.set_defaults(run=run_gemma)
    command = commands.add_parser("gemma4")
    command.add_argument("llama_cpp", type=Path, help="root of a checkout of llama.cpp")
    command.set_defaults(run=run_gemma4)
    command = commands.add_parser("templates")
    command.add_argument("llama_cpp", type=Path, help="root of a checkout of llama.cpp")
    command.set_defaults(run=run_templates)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
