#!/usr/bin/env python3
"""Where an overwritten fact lives, by kind of mixer: trains one tiny model for each from a seed and runs all over the same twins of `build dose`.

    python3 scripts/mixers.py --out OUT [--palimpsest COMMAND] [MIXER...]

The last command draws OUT/figures/dose-runs: the effect of the update by distance, a line for each mixer that OUT has. A MIXER may also be a
released model by name or folder, which is run as it is. Needs torch and transformers. The same command goes on after a stop. The models
that are trained here read these histories and nothing else.
"""

import argparse
import csv
import json
import multiprocessing
import random
import re
import subprocess
import time
import tomllib
import types
from collections import defaultdict
from pathlib import Path

import jinja2
import torch
from safetensors import safe_open
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.models.deepseek_v32.modeling_deepseek_v32 import DeepseekV32Indexer, apply_rotary_pos_emb

DATE = "2025-01-06 08:00"
DATA = Path(__file__).resolve().parent.parent / "crates/data/src"
# Dates and numbers, words with the space before them, any other character.
PIECE = r" \(\d[-\d: ]+\)| ?\d+(?:[-: ]\d+)*|'s| ?[A-Za-z]+|.|\n"
# The space makes the answer's first word the same token as within a text.
CHAT = "{% for message in messages %}<{{ message.role }}> {{ message.content }}{% endfor %}{% if add_generation_prompt %}<answer> {% endif %}"
END = "<end>"
SPECIAL = ["<unk>", END, "<system>", "<user>", "<assistant>", "<answer>"]
# WINDOW: keys of a row, in a sliding window or chosen by an indexer.
LAYERS, WIDTH, HEADS, WINDOW = 2, 32, 2, 64
SHARED = dict(hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
              num_key_value_heads=HEADS, head_dim=WIDTH // HEADS, max_position_embeddings=4096, tie_word_embeddings=True, initializer_range=0.1)
DELTA = dict(linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=16, linear_value_head_dim=16, linear_conv_kernel_dim=4)
CONVOLUTION = dict(conv_L_cache=3, block_auto_adjust_ff_dim=False)
MAMBA = dict(num_local_experts=0, num_experts_per_tok=0, mamba_n_heads=4, mamba_d_head=16, mamba_d_state=16, mamba_n_groups=1, mamba_d_conv=4,
             mamba_expand=2, mamba_chunk_size=32, shared_intermediate_size=2 * WIDTH)
SPARSE = dict(q_lora_rank=WIDTH, kv_lora_rank=WIDTH, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=WIDTH // HEADS,
              first_k_dense_replace=LAYERS, index_n_heads=4, index_head_dim=16, index_topk=WINDOW)
# transformers' model type, and what its config has beside SHARED.
MIXERS = {
    "softmax": ("qwen3", {}),
    "window": ("mistral", dict(sliding_window=WINDOW)),
    "sparse": ("deepseek_v32", SPARSE),
    "delta": ("qwen3_5_text", dict(DELTA, layer_types=["linear_attention"] * LAYERS)),
    "mamba-2": ("granitemoehybrid", dict(MAMBA, layer_types=["mamba"] * LAYERS)),
    "convolution": ("lfm2", dict(CONVOLUTION, layer_types=["conv"] * LAYERS)),
}
# Optimiser's steps with histories of at most so many tokens (0: bare statements with questions between), one after the other; tokens of a step.
STAGES, TOKENS, RATE = [(1200, 0), (300, 256), (300, 700)], 1024, 6e-3
# Steps of dense attention, alongside which indexers are taught; they choose keys in those after.
DENSE = 1500
TEST = """family = "slots"
items = 12
seed = 1
session_tokens = 48
twins = ["update", "no-update"]

[sweeps]
distance = [64, 128, 256, 512]
"""


class Histories:
    """Random histories of `build dose`'s words: a few facts, stated and most of them overwritten, among other talk; and questions on all."""

    def __init__(self):
        read = lambda name: tomllib.loads((DATA / f"construct/texts/{name}.toml").read_text())
        self.chat, self.topics, self.values = read("chat"), read("fillers")["topic"], read("values")
        self.templates = [one for one in read("templates")["template"] if "slots" in one["families"]]
        environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
        prompts = DATA / "benchmarks/dose/templates"
        self.system, self.session, self.question = (
            environment.from_string((prompts / f"{name}.j2").read_text()) for name in ("system", "session", "question"))

    def words(self) -> list[str]:
        """Every word that a history can have, as at the beginning of a text and as within."""
        lists = [self.values[template["values"]] for template in self.templates]
        frame = self.system.render() + " " + self.question.render(history="Session\nUser\nAssistant now. Question", query="", date="1")
        told = [re.sub(r"\{\w+\}", "x", text) for text in texts([self.chat, self.topics, self.templates, lists])]
        return sorted({piece for text in [*told, frame] for piece in pieces(text) + pieces(" " + text)})

    def filler(self, draw: random.Random) -> list[str]:
        topic = draw.choice(self.topics)
        thing = draw.choice(topic["things"])
        turns = []
        for ask in draw.sample(topic["asks"], draw.choice([1, 1, 2])):
            turns += [[ask], draw.sample(topic["tells"], draw.choice([1, 2]))]
        return [" ".join(said(sentence, x=thing) for sentence in turn) for turn in turns]

    def evidence(self, draw: random.Random, statement: str) -> list[str]:
        remarks = draw.randint(0, 3)
        opening = " ".join([draw.choice(self.chat["greetings"]), *draw.sample(self.chat["remarks"], remarks)])
        return [opening, draw.choice(self.chat["replies"]), statement + ".", draw.choice(self.chat["acks"])]

    def bare(self, draw: random.Random) -> list[tuple[str, str]]:
        """Texts and the values that follow them: statements about a few facts, and answers between them."""
        slots = [(draw.choice(self.chat["names"]), template) for template in draw.sample(self.templates, draw.randint(1, 3))]
        latest, made, text = {}, [], ""
        while len(made) < 7:
            number = draw.randrange(len(slots))
            name, template = slots[number]
            if number in latest and draw.random() < 0.6:
                made.append((f"{text}<answer> {said(template['prefix'], name=name)}", " " + latest[number]))
                text = ""
            else:
                now = " now" if number in latest else ""
                latest[number] = draw.choice(self.values[template["values"]])
                text += f"\nUser: {said(template['clause']['full'], name=name, v=latest[number])}{now}."
        return made

    def draw(self, draw: random.Random, most: int) -> list[tuple[str, str]]:
        """A prompt of up to about `most` tokens and the value that follows it, then further questions with theirs."""
        names, templates = draw.sample(self.chat["names"], 2), draw.sample(self.templates, 2)
        told, asked = [], []
        for name, template in draw.sample([(n, t) for n in names for t in templates], draw.choice([1, 1, 2, 3])):
            values = draw.sample(self.values[template["values"]], draw.choice([1, 2, 2, 2]))
            clauses = [said(template["clause"]["full"], name=name, v=value) for value in values]
            told += zip(sorted(draw.random() for _ in clauses), [clauses[0], *(f"{clause} now" for clause in clauses[1:])])
            asked.append((said(template["question"], name=name), said(template["prefix"], name=name), " " + values[-1]))
        sessions = [self.evidence(draw, statement) for _, statement in sorted(told)]
        room = draw.uniform(0, most) - 40 * len(sessions) - 60 * len(asked)
        while room > 0:
            filler = self.filler(draw)
            sessions.insert(draw.randint(0, len(sessions)), filler)
            room -= 15 + sum(len(turn) for turn in filler) / 5
        history = ""
        for number, turns in enumerate(sessions, 1):
            turns = [dict(speaker=("User", "Assistant")[nth % 2], content=turn) for nth, turn in enumerate(turns)]
            history += self.session.render(number=number, date=DATE, turns=turns).strip() + "\n\n"
        draw.shuffle(asked)
        made = []
        for query, prefix, value in asked:
            question = self.question.render(history=history, query=query, date=DATE).strip()
            before = question[question.index("Question:"):] if made else question
            start = "" if made else f"<system> {self.system.render().strip()}"
            made.append((f"{start}<user> {before}<answer> {prefix}", value))
        return made


def texts(value):
    """All texts within lists and tables."""
    if isinstance(value, str):
        yield value
    else:
        for one in value.values() if isinstance(value, dict) else value:
            yield from texts(one)


def said(pattern: str, **words: str) -> str:
    """A pattern with its places filled, and a capital letter first."""
    text = pattern.format_map(words)
    return text[0].upper() + text[1:]


def pieces(text: str) -> list[str]:
    return re.findall(PIECE, text)


def tokenizer_of(words: list[str]) -> PreTrainedTokenizerFast:
    known = SPECIAL + [word for word in words if word and not re.search(r"\d", word)]
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(known)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(PIECE), "isolated")
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens(SPECIAL)
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", eos_token=END, chat_template=CHAT)


def fresh(mixer: str, tokenizer):
    torch.manual_seed(1)
    kind, more = MIXERS[mixer]
    config = AutoConfig.for_model(kind, **{**SHARED, **more}, vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id,
                                  bos_token_id=None, pad_token_id=None)
    # Indexers are taught by attention weights, which only eager attention returns.
    more = dict(attn_implementation="eager") if mixer == "sparse" else {}
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, **more)
    for name, parameter in model.named_parameters():
        # States that remember for 10 to 1,000 tokens to begin with; transformers' first ones forget within a few.
        if name.endswith("dt_bias"):
            rate = torch.logspace(-3, -1, len(parameter))
            parameter.data = rate + torch.log(-torch.expm1(-rate))
        if name.endswith("A_log"):
            parameter.data = torch.zeros_like(parameter)
    return model


def choose(self, hidden, queries, angles, mask, *_, **__):
    """The forward of transformers' indexer with gradients of its own, which stop at its inputs. Keeps `scores` (b, l, l) of the chosen keys."""
    heads, turned = self.n_heads, self.qk_rope_head_dim
    q = self.wq_b(queries.detach()).unflatten(-1, (heads, -1))  # (b, l, heads, d)
    k = self.k_norm(self.wk(hidden.detach())).unsqueeze(2)  # (b, l, 1, d)
    q_turned, k_turned = apply_rotary_pos_emb(q[..., :turned], k[..., :turned], *angles, unsqueeze_dim=2)
    q, k = torch.cat([q_turned, q[..., turned:]], -1), torch.cat([k_turned, k[..., turned:]], -1).squeeze(2)
    weights = self.weights_proj(hidden.detach()) * (heads * self.head_dim) ** -0.5
    scores = torch.einsum("bih,bhij->bij", weights, torch.einsum("bihd,bjd->bhij", q, k).relu()) + mask
    chosen = scores.topk(min(self.keys, scores.shape[-1])).indices
    self.scores = torch.full_like(scores, torch.finfo(scores.dtype).min).scatter(-1, chosen, scores.gather(-1, chosen))
    return chosen


def divergence(attention, scores, real):
    """KL divergence, less the constant entropy, of an indexer's distribution over keys from the heads' mean attention (b, heads, l, l)."""
    return -(attention.detach().mean(1) * scores.log_softmax(-1)).sum(-1)[real].mean()


def train(mixer: str, folder: Path, tokenizer):
    """Trains on the values that answers go on with, and prints the share of right ones as it goes."""
    model, histories, draw = fresh(mixer, tokenizer), Histories(), random.Random(2)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    lengths = [most for count, most in STAGES for _ in range(count)]
    ids = lambda text: tokenizer(text, add_special_tokens=False).input_ids
    indexers = [module for module in model.modules() if isinstance(module, DeepseekV32Indexer)]
    for indexer in indexers:
        indexer.forward = types.MethodType(choose, indexer)
    print(f"{mixer}: {sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    right = seen = tokens = 0
    for step, most in enumerate(lengths):
        for group in optimiser.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 30, (1 - step / len(lengths)) / 0.3)
        rows, ends = [], []
        while not rows or (len(rows) + 1) * max(map(len, rows)) < TOKENS:
            row = []
            for text, value in (histories.draw(draw, most) if most else histories.bare(draw)):
                row += ids(text)
                ends.append((len(rows), len(row) - 1))
                row += ids(value)
            rows.append(row)
        inputs = torch.tensor([row + [0] * (max(map(len, rows)) - len(row)) for row in rows])
        rows_of, places = torch.tensor(ends).T
        for indexer in indexers:
            indexer.keys = indexer.index_topk if step >= DENSE else inputs.shape[1]
        output = model.model(inputs, use_cache=False, **({"output_attentions": True} if indexers else {}))
        hidden = output.last_hidden_state[rows_of, places]
        logits, values = model.lm_head(hidden) / getattr(model.config, "logits_scaling", 1), inputs[rows_of, places + 1]
        loss = torch.nn.functional.cross_entropy(logits, values)
        real = torch.arange(inputs.shape[1]) < torch.tensor([[len(row)] for row in rows])  # (b, l): no padding
        taught = sum(divergence(output.attentions[layer], indexer.scores, real) for layer, indexer in enumerate(indexers))
        optimiser.zero_grad()
        (loss + taught).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        right, seen, tokens = right + int((logits.argmax(1) == values).sum()), seen + len(ends), tokens + inputs.numel()
        if (step + 1) % 25 == 0:
            print(f"{mixer}: step {step + 1} of {len(lengths)}, at most {most}, loss {loss.item():.3f}, right {right / seen:.2f} of {seen}, "
                  f"{tokens:,} tokens, {time.process_time():.0f} s", flush=True)
            right = seen = 0
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


def shell(*words):
    print("+", *words, flush=True)
    subprocess.run([str(word) for word in words], check=True)


def made(mixer: str, out: Path, palimpsest: str):
    """The mixer's model, and its run over the twins. Another name is a released model's, which is only run."""
    torch.set_num_threads(1)
    folder = out / mixer if mixer in MIXERS else mixer
    if mixer in MIXERS and not (folder / "model.safetensors").exists():
        train(mixer, folder, PreTrainedTokenizerFast.from_pretrained(out / "tokenizer"))
    recorded = "--selected" if mixer == "sparse" else "--no-attention"
    run = out / "runs" / Path(mixer).name
    shell(palimpsest, "run", "--data", out / "test", "--model", folder, "--max-new-tokens", 2, recorded, "--out", run)


def selected(run: Path, table: Path):
    """Means over update twins of what the indexers left of both sessions to the question and to the row that answers (docs/measures.md)."""
    found = defaultdict(list)
    for file in sorted((run / "attention").glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            told = tensors.metadata()
            _, level, twin = told["case"].split(".")
            numbers = [tensors.get_tensor("selected"), tensors.get_tensor("forgone"), tensors.get_tensor("mass").mean(1)]
        spans, rows = json.loads(told["spans"]), [row["label"] for row in json.loads(told["rows"])]
        sessions = {span["role"]: at for at, span in enumerate(spans) if span.get("role") in ("old", "new")} if twin in ("ab", "ba") else {}
        for role, key in sessions.items():
            for row in ("query", "last"):
                for layer in range(LAYERS):
                    found[int(level.removeprefix("distance-").replace("base", "0")), row, role, layer].append(
                        [one[layer, rows.index(row), key].item() for one in numbers])
    with table.open("w", newline="") as sink:
        lines = csv.writer(sink, lineterminator="\n")
        lines.writerow(["distance", "row", "session", "layer", "n", "selected", "forgone", "mass"])
        for place, all_of in sorted(found.items()):
            lines.writerow([*place, len(all_of), *(f"{sum(one) / len(all_of):.4f}" for one in zip(*all_of))])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("mixers", nargs="*", default=list(MIXERS), metavar="MIXER",
                        help=f"{', '.join(MIXERS)}, or a model that `palimpsest run` takes")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--palimpsest", default="palimpsest", help="the command")
    parser.add_argument("--jobs", type=int, default=1, help="mixers at once, on a core each")
    args = parser.parse_args()
    out = args.out
    if not (out / "test").exists():
        tokenizer_of(Histories().words()).save_pretrained(out / "tokenizer")
        (out / "test.toml").write_text(TEST)
        shell(args.palimpsest, "build", "dose", out / "test.toml", "--out", out / "test", "--tokenizer", out / "tokenizer")
    with multiprocessing.get_context("fork").Pool(args.jobs) as pool:
        pool.starmap(made, [(mixer, out, args.palimpsest) for mixer in args.mixers], chunksize=1)
    order = [*MIXERS, *sorted(path.name for path in (out / "runs").iterdir())]
    runs = [out / "runs" / name for name in dict.fromkeys(order) if (out / "runs" / name).exists()]
    shell(args.palimpsest, "dose", *runs, "--factor", "distance", "--out", out / "figures")
    if (out / "runs/sparse").exists():
        selected(out / "runs/sparse", out / "figures/selected.csv")


if __name__ == "__main__":
    main()
