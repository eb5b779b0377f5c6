#!/usr/bin/env python3
"""Contrasts from Hugging Face transformers, in f32 with eager attention, over the prompts of a run of dose.

For developers only: palimpsest never needs it. It makes tests/fixtures/contrasts.json of a run of the built-in sample:

  palimpsest run --data sample:dose --model smollm2-135m --out RUN
  tests/reference/contrast_reference.py RUN FOLDER_OF_THE_GGUF_FILE SmolLM2-135M-Instruct.Q4_1.gguf tests/fixtures/contrasts.json

Tokens are those of the run's attention files, of which the tests check that they are still the prompts; log-probabilities are those
of transformers after them. Every value must be read at its first token, as those of the sample are in SmolLM2's vocabulary.
Environment: `pip install -r tests/reference/requirements.txt`.
"""

import argparse
import json
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM


def values(contrast: dict) -> list[dict]:
    """All values of a row's contrast, the current one first."""
    single = [contrast[key] for key in ("current", "stale", "absent") if key in contrast]
    return single + contrast.get("earlier", []) + contrast.get("others", [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("gguf")
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(
        args.model, gguf_file=args.gguf, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    found, furthest = [], 0.0
    for line in (args.run / "answers.jsonl").read_text().splitlines():
        row = json.loads(line)
        with safe_open(args.run / row["attention"], "np") as store:
            tokens = store.get_tensor("tokens").tolist()
        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits[0, -1].double()
        log_p = torch.log_softmax(logits, -1)
        expected = [
            {"text": value["text"], "token": value["token"], "log_p": log_p[value["token"]].item()}
            for value in values(row["contrast"])
        ]
        apart = [abs(a["log_p"] - b["log_p"]) for a, b in zip(values(row["contrast"]), expected, strict=True)]
        furthest = max(furthest, *apart)
        found.append({"case": row["case"], "probe": row["probe"], "tokens": tokens, "values": expected})
    args.out.write_text("[\n" + ",\n".join(json.dumps(row) for row in found) + "\n]\n")
    print(f"{len(found)} contrasts; the run's log-probabilities are off by {furthest:.2e} at most")


if __name__ == "__main__":
    main()
