//! Small llama checkpoints, written as safetensors and as llama.cpp's converter writes them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value as Json, json};

use super::fixture;

/// config.json and f32 tensors by Hugging Face's names.
#[derive(Clone)]
pub struct Llama {
    pub config: Json,
    pub tensors: HashMap<String, Tensor>,
}

/// llama.cpp's names for Hugging Face's.
const NAMES: [(&str, &str); 13] = [
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    ("model.layers.", "blk."),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

impl Llama {
    pub fn fixture(name: &str) -> Self {
        let folder = fixture(name);
        Llama {
            config: serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap(),
            tensors: candle_core::safetensors::load(folder.join("model.safetensors"), &Device::Cpu).unwrap(),
        }
    }

    /// Random weights from a fixed seed: 2 layers, 4 heads on 2 KV heads; block sizes 32 and 256 divide the width.
    pub fn random(hidden: usize, tied: bool, biases: bool) -> Self {
        let (heads, kv_heads, vocab, intermediate) = (4, 2, 120, hidden * 2);
        let head_dim = hidden / heads;
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let mut tensors = HashMap::new();
        let mut put = |name: String, shape: &[usize]| {
            // Products of unit variance, norms around 1.
            let size = match shape {
                [_, columns] => (3.0 / *columns as f32).sqrt() * 1.4,
                _ => 0.4,
            };
            let values: Vec<f32> = (0..shape.iter().product())
                .map(|_| {
                    let x = rng.random_range(-1.0..1.0) * size;
                    if name.ends_with("norm.weight") { 1.0 + x } else { x }
                })
                .collect();
            tensors.insert(name, Tensor::from_vec(values, shape, &Device::Cpu).unwrap());
        };
        put("model.embed_tokens.weight".into(), &[vocab, hidden]);
        put("model.norm.weight".into(), &[hidden]);
        if !tied {
            put("lm_head.weight".into(), &[vocab, hidden]);
        }
        let kv = kv_heads * head_dim;
        for layer in 0..2 {
            for (name, rows, columns) in [
                ("self_attn.q_proj", hidden, hidden),
                ("self_attn.k_proj", kv, hidden),
                ("self_attn.v_proj", kv, hidden),
                ("self_attn.o_proj", hidden, hidden),
                ("mlp.gate_proj", intermediate, hidden),
                ("mlp.up_proj", intermediate, hidden),
                ("mlp.down_proj", hidden, intermediate),
            ] {
                put(format!("model.layers.{layer}.{name}.weight"), &[rows, columns]);
                if biases && name.starts_with("self_attn") {
                    put(format!("model.layers.{layer}.{name}.bias"), &[rows]);
                }
            }
            for name in ["input_layernorm", "post_attention_layernorm"] {
                put(format!("model.layers.{layer}.{name}.weight"), &[hidden]);
            }
        }
        let config = json!({
            "model_type": "llama", "hidden_size": hidden, "intermediate_size": intermediate, "vocab_size": vocab,
            "num_attention_heads": heads, "num_key_value_heads": kv_heads, "num_hidden_layers": 2,
            "rms_norm_eps": 1e-5, "max_position_embeddings": 512, "rope_theta": 5000.0,
            "tie_word_embeddings": tied, "attention_bias": biases,
        });
        Llama { config, tensors }
    }

    fn number(&self, field: &str) -> usize {
        self.config[field].as_u64().unwrap() as usize
    }

    pub fn head_dim(&self) -> usize {
        let head_dim = self.config["head_dim"].as_u64().map(|n| n as usize);
        head_dim.unwrap_or_else(|| self.number("hidden_size") / self.number("num_attention_heads"))
    }

    /// Every matrix rounded to `dtype`.
    pub fn rounded(&self, dtype: GgmlDType) -> Self {
        let round = |(name, tensor): (&String, &Tensor)| {
            let rounded = match tensor.rank() {
                2 => QTensor::quantize(tensor, dtype).unwrap().dequantize(&Device::Cpu).unwrap(),
                _ => tensor.clone(),
            };
            (name.clone(), rounded)
        };
        Llama { config: self.config.clone(), tensors: self.tensors.iter().map(round).collect() }
    }

    /// Writes a model folder.
    pub fn write_folder(&self, folder: &Path) -> PathBuf {
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(folder.join("config.json"), self.config.to_string()).unwrap();
        candle_core::safetensors::save(&self.tensors, folder.join("model.safetensors")).unwrap();
        folder.to_owned()
    }

    /// GGUF metadata as llama.cpp's converter writes it.
    pub fn metadata(&self) -> Vec<(&'static str, Value)> {
        let count = |field| Value::U32(self.number(field) as u32);
        let theta = self.config["rope_parameters"]["rope_theta"].as_f64();
        let theta = theta.or(self.config["rope_theta"].as_f64()).unwrap();
        vec![
            ("general.architecture", Value::String("llama".into())),
            ("llama.block_count", count("num_hidden_layers")),
            ("llama.context_length", count("max_position_embeddings")),
            ("llama.embedding_length", count("hidden_size")),
            ("llama.feed_forward_length", count("intermediate_size")),
            ("llama.attention.head_count", count("num_attention_heads")),
            ("llama.attention.head_count_kv", count("num_key_value_heads")),
            ("llama.attention.key_length", Value::U32(self.head_dim() as u32)),
            ("llama.attention.value_length", Value::U32(self.head_dim() as u32)),
            ("llama.rope.dimension_count", Value::U32(self.head_dim() as u32)),
            ("llama.rope.freq_base", Value::F32(theta as f32)),
            (
                "llama.attention.layer_norm_rms_epsilon",
                Value::F32(self.config["rms_norm_eps"].as_f64().unwrap() as f32),
            ),
            ("llama.vocab_size", count("vocab_size")),
        ]
    }

    /// Tensors by llama.cpp's names, with the halves of every query and key head interleaved, the llama3 scaling as divisors, and every
    /// matrix as `dtype`.
    pub fn gguf_tensors(&self, dtype: GgmlDType) -> Vec<(String, QTensor)> {
        let mut out: Vec<(String, QTensor)> = self
            .tensors
            .iter()
            .map(|(name, tensor)| {
                let stored = NAMES.iter().fold(name.clone(), |name, (hf, gguf)| name.replace(hf, gguf));
                let heads = if name.contains("q_proj") {
                    Some("num_attention_heads")
                } else if name.contains("k_proj") {
                    Some("num_key_value_heads")
                } else {
                    None
                };
                let tensor = match heads {
                    None => tensor.clone(),
                    Some(heads) => {
                        let (heads, rows) = (self.number(heads), tensor.dim(0).unwrap());
                        let halves = (heads, 2, rows / heads / 2, tensor.elem_count() / rows);
                        let swapped = tensor.reshape(halves).unwrap().transpose(1, 2).unwrap();
                        swapped.contiguous().unwrap().reshape(tensor.dims()).unwrap()
                    }
                };
                let dtype = if tensor.rank() == 2 { dtype } else { GgmlDType::F32 };
                (stored, QTensor::quantize(&tensor, dtype).unwrap())
            })
            .collect();
        let rope = &self.config["rope_parameters"];
        if rope["rope_type"] == "llama3" {
            let number = |field: &str| rope[field].as_f64().unwrap();
            let (low, high) = (number("low_freq_factor"), number("high_freq_factor"));
            let (original, d) = (number("original_max_position_embeddings"), self.head_dim());
            let divisors: Vec<f32> = (0..d / 2)
                .map(|i| {
                    let turns = original * number("rope_theta").powf(-2.0 * i as f64 / d as f64)
                        / std::f64::consts::TAU;
                    let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                    (1.0 / ((1.0 - kept) / number("factor") + kept)) as f32
                })
                .collect();
            let divisors = Tensor::from_vec(divisors, d / 2, &Device::Cpu).unwrap();
            out.push(("rope_freqs.weight".into(), QTensor::quantize(&divisors, GgmlDType::F32).unwrap()));
        }
        out.sort_by(|a, b| a.0.cmp(&b.0));
        out
    }

    pub fn write_gguf(&self, path: &Path, dtype: GgmlDType) -> PathBuf {
        write_gguf(path, &self.metadata(), &self.gguf_tensors(dtype))
    }
}

pub fn write_gguf(path: &Path, metadata: &[(&str, Value)], tensors: &[(String, QTensor)]) -> PathBuf {
    let metadata: Vec<(&str, &Value)> = metadata.iter().map(|(key, value)| (*key, value)).collect();
    let tensors: Vec<(&str, &QTensor)> =
        tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let mut file = std::fs::File::create(path).unwrap();
    gguf_file::write(&mut file, &metadata, &tensors).unwrap();
    path.to_owned()
}
