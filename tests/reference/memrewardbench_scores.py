"""What transformers gives to the options of a probe: tests/fixtures/memrewardbench/scores.json.

usage: python tests/reference/memrewardbench_scores.py OUT CHECKPOINT=ATTENTION_FILE ...

An attention file of a run holds the prompt's tokens. The options' tokens are those that follow the end of any prompt.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

OPTIONS = ["[[A]]", "[[B]]"]
FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"


def main() -> None:
    out, *pairs = sys.argv[1:]
    rows = []
    for pair in pairs:
        name, attention = pair.split("=")
        folder = FIXTURES / name
        tokens = [int(token) for token in load_file(attention)["tokens"]]
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
        # The end of a prompt, of which the options' tokens do not depend on more.
        end = tokenizer.decode(tokens[-12:], clean_up_tokenization_spaces=False)
        before = tokenizer(end, add_special_tokens=False)["input_ids"]
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        options = {}
        for option in OPTIONS:
            ids = tokenizer(end + option, add_special_tokens=False)["input_ids"]
            assert ids[: len(before)] == before
            ids = ids[len(before) :]
            with torch.no_grad():
                logits = model(torch.tensor([tokens + ids])).logits[0].double()
            log_p = torch.log_softmax(logits, -1)
            score = sum(log_p[len(tokens) - 1 + i, token].item() for i, token in enumerate(ids))
            options[option] = {"tokens": ids, "log_probability": score}
        rows.append({"checkpoint": name, "tokens": tokens, "options": options})
        print(name, len(tokens), options)
    Path(out).write_text(json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
