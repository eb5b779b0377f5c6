//! A scripted model: the next token is a function of the last one.
//!
//! A one-layer Llama that adds nothing: a token's embedding is a unit vector, and the head maps each to its successor. Prefill, decode,
//! splitting and storage are exactly those of a trained model.

use std::path::Path;

use palimpsest_core::attention::{Values, write_tensors};
use serde_json::{Value, json};

/// Tokens besides letters and ChatML's: markers of the nine families, and words.
const SPECIAL: [&str; 15] = [
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|end|>",
    "<|return|>",
    "<|user|>",
    "]~!b[",
    "]~b]",
    "[e~[",
];
/// Published as ordinary, not special, tokens.
const PLAIN: [&str; 15] = [
    "<think>",
    "</think>",
    "<tool_call>",
    "\n\n",
    "assistant",
    "analysis",
    HOP,
    "Let me see:",
    " it was",
    " Rome, or",
    " Lima",
    "You moved",
    " to Oslo.",
    "<|assistant|>",
    VERDICTS,
];
/// The judge's reply as a single token, because a bigram model cannot write JSON letter by letter.
pub const VERDICTS: &str = r#"{"SR": {"correct": true, "reason": "a"}, "PR": {"correct": false, "reason": "b"}, "IPA": {"correct": true, "reason": "c"}}"#;
/// From thought to answer. A single token, because a bigram model cannot distinguish the two channels.
pub const HOP: &str = "<|end|><|start|>assistant<|channel|>final<|message|>";

/// Writes the model that follows `chains`, and whose turns end with `end`.
pub fn write(folder: &Path, template: &str, chains: &[&[&str]], end: &str) {
    std::fs::create_dir_all(folder).unwrap();
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/llama-tiny");
    let mut tokenizer: Value =
        serde_json::from_slice(&std::fs::read(tiny.join("tokenizer.json")).unwrap()).unwrap();
    let added = tokenizer["added_tokens"].as_array_mut().unwrap();
    let mut next = 267;
    let gmask = ["[gMASK]", "<sop>", "<bos>"];
    let special = SPECIAL.iter().chain(&gmask).map(|token| (*token, true));
    for (content, special) in special.chain(PLAIN.iter().map(|token| (*token, false))) {
        added.push(json!({
            "id": next, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": special
        }));
        next += 1;
    }
    let ids: std::collections::BTreeMap<String, usize> = (added.iter())
        .map(|token| (token["content"].as_str().unwrap().to_owned(), token["id"].as_u64().unwrap() as usize))
        .collect();
    let newline = tokenizer["model"]["vocab"]["\u{10a}"].as_u64().unwrap() as usize;
    let id = |token: &str| if token == "\n" { newline } else { ids[token] };

    const HIDDEN: usize = 320;
    assert!(next <= HIDDEN);
    let mut embedding = vec![0.0f32; next * HIDDEN];
    let mut head = vec![0.0f32; next * HIDDEN];
    for token in 0..next {
        embedding[token * HIDDEN + token] = 1.0;
    }
    for chain in chains {
        for pair in chain.windows(2) {
            head[id(pair[1]) * HIDDEN + id(pair[0])] = 1.0;
        }
    }
    // A token without a successor ends the turn, with a lower logit.
    for token in 0..next {
        head[id(end) * HIDDEN + token] += 0.5;
    }
    let zeros = |rows: usize, columns: usize| (Values::F32(vec![0.0; rows * columns]), vec![rows, columns]);
    let ones = || (Values::F32(vec![1.0; HIDDEN]), vec![HIDDEN]);
    let layer = "model.layers.0";
    let names: Vec<(String, (Values, Vec<usize>))> = vec![
        ("model.embed_tokens.weight".to_owned(), (Values::F32(embedding), vec![next, HIDDEN])),
        ("lm_head.weight".to_owned(), (Values::F32(head), vec![next, HIDDEN])),
        ("model.norm.weight".to_owned(), ones()),
        (format!("{layer}.input_layernorm.weight"), ones()),
        (format!("{layer}.post_attention_layernorm.weight"), ones()),
        (format!("{layer}.self_attn.q_proj.weight"), zeros(32, HIDDEN)),
        (format!("{layer}.self_attn.k_proj.weight"), zeros(16, HIDDEN)),
        (format!("{layer}.self_attn.v_proj.weight"), zeros(16, HIDDEN)),
        (format!("{layer}.self_attn.o_proj.weight"), zeros(HIDDEN, 32)),
        (format!("{layer}.mlp.gate_proj.weight"), zeros(8, HIDDEN)),
        (format!("{layer}.mlp.up_proj.weight"), zeros(8, HIDDEN)),
        (format!("{layer}.mlp.down_proj.weight"), zeros(HIDDEN, 8)),
    ];
    let tensors: Vec<_> = names.into_iter().map(|(name, (values, shape))| (name, values, shape)).collect();
    let tensors: Vec<_> = (tensors.iter())
        .map(|(name, values, shape)| {
            let Values::F32(values) = values else { unreachable!() };
            (name.as_str(), Values::F32(values.clone()), shape.clone())
        })
        .collect();
    write_tensors(&folder.join("model.safetensors"), &tensors, &[("format", "pt".to_owned())]).unwrap();

    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": HIDDEN,
        "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
        "max_position_embeddings": 16384, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": false,
        "vocab_size": next, "eos_token_id": id(end), "dtype": "float32", "attention_bias": false, "mlp_bias": false
    });
    let write = |name: &str, text: String| std::fs::write(folder.join(name), text).unwrap();
    write("config.json", config.to_string());
    write("tokenizer.json", tokenizer.to_string());
    write("tokenizer_config.json", json!({ "bos_token": "<bos>", "eos_token": end }).to_string());
    write("chat_template.jinja", template.to_owned());
}
