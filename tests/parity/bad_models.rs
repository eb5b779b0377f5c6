//! An invalid config or file gives a named error; the loader never panics or allocates excessively.

use std::path::Path;

use candle_core::quantized::gguf_file::Value;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use palimpsest_core::attention::NoObserver;
use palimpsest_core::engine::{Engine, EngineError};
use palimpsest_core::model::{OpenModel, arch};
use serde_json::{Value as Json, json};

use super::checkpoint::{Llama, write_gguf};
use super::{LLAMA, TINY, engine, fixture};

/// Error of opening or loading `path`.
fn refusal(path: &Path) -> String {
    let loaded = OpenModel::open(&[path.to_owned()]).and_then(|model| model.load(&Device::Cpu, DType::F32));
    match loaded {
        Ok(_) => "loaded".to_owned(),
        Err(error) => format!("{:#}", anyhow::Error::from(error)),
    }
}

#[test]
fn every_wrong_field_of_a_config_is_refused_by_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let model = Llama::fixture(TINY[0]);
    let refused = |change: &[(&str, Json)]| {
        let mut config = model.config.clone();
        for (field, value) in change {
            config[*field] = value.clone();
        }
        let changed = Llama { config, tensors: model.tensors.clone() };
        refusal(&changed.write_folder(dir.path()))
    };
    assert_eq!(refused(&[]), "loaded");
    let absent = Json::Null;
    for (field, value, said) in [
        ("num_attention_heads", json!(0), "`num_attention_heads` is 0"),
        ("num_attention_heads", json!(-6), "`num_attention_heads` is -6"),
        ("num_attention_heads", absent.clone(), "`num_attention_heads` is missing"),
        ("num_key_value_heads", json!(0), "`num_key_value_heads` is 0"),
        ("num_key_value_heads", json!(4), "`num_key_value_heads` is 4"),
        ("head_dim", json!(0), "`head_dim` is 0"),
        ("head_dim", json!(13), "`head_dim` is 13"),
        ("head_dim", json!(16), "q_proj.weight` has shape [72, 72] where the config implies [96, 72]"),
        ("hidden_size", json!(0), "`hidden_size` is 0"),
        ("hidden_size", json!(64), "has shape [267, 72] where the config implies [267, 64]"),
        ("num_hidden_layers", json!(0), "`num_hidden_layers` is 0"),
        ("num_hidden_layers", json!(2), "does not use: `model.layers.2"),
        ("num_hidden_layers", json!(4), "`model.layers.3.input_layernorm.weight` is missing"),
        ("num_hidden_layers", json!(16_777_216), "`num_hidden_layers` is 16777216"),
        ("num_hidden_layers", json!(u64::MAX), "`num_hidden_layers` is 18446744073709551615"),
        ("num_hidden_layers", json!("3"), "`num_hidden_layers` is \"3\""),
        ("vocab_size", json!(0), "`vocab_size` is 0"),
        ("vocab_size", json!(268), "has shape [267, 72] where the config implies [268, 72]"),
        ("intermediate_size", json!(101), "gate_proj.weight` has shape [100, 72]"),
        ("max_position_embeddings", json!(0), "`max_position_embeddings` is 0"),
        ("rms_norm_eps", json!(0), "`rms_norm_eps` is 0"),
        ("rms_norm_eps", json!(-1.0), "`rms_norm_eps` is -1"),
        ("hidden_act", json!("gelu"), "`hidden_act` is `gelu`"),
        ("pretraining_tp", json!(2), "`pretraining_tp` is 2"),
        ("tie_word_embeddings", json!("yes"), "`tie_word_embeddings` is \"yes\""),
        ("tie_word_embeddings", json!(true), "does not use: `lm_head.weight`"),
        ("attention_bias", json!(true), "q_proj.bias` is missing"),
        ("rope_parameters", json!({"rope_type": "linear", "rope_theta": 1e4}), "`factor` is missing"),
        ("rope_parameters", json!({"rope_type": "longrope", "rope_theta": 1e4}), "`rope_type` is `longrope`"),
        (
            "logit_scale",
            json!(0.5),
            "`logit_scale` is 0.5, a field that this architecture is not known to have",
        ),
        ("rope_parameters", json!({"rope_type": "default", "ntk_alpha": 2.0}), "`ntk_alpha` is 2.0"),
        ("quantization_config", json!({"quant_method": "gptq"}), "`quant_method` is `gptq`"),
        (
            "quantization_config",
            json!({"quant_method": "compressed-tensors", "format": "pack-quantized"}),
            "`format` is `pack-quantized`",
        ),
        (
            "quantization_config",
            json!({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "transform_config": {"R1": 1}}),
            "`transform_config` has transforms of weights",
        ),
        (
            "quantization_config",
            json!({"quant_method": "modelopt", "quant_algo": "FP8"}),
            "`quant_algo` is `FP8`",
        ),
        ("rope_parameters", json!({"rope_type": "default", "rope_theta": 0}), "`rope_theta` is 0"),
        ("rope_parameters", json!({"rope_type": "llama3", "rope_theta": 1e4}), "`factor` is missing"),
        ("rope_parameters", json!(7), "is 7, not an object"),
        ("model_type", json!("mamba"), "unknown architecture `mamba`"),
        ("model_type", absent.clone(), "`model_type` is missing"),
    ] {
        let found = refused(&[(field, value.clone())]);
        assert!(found.contains(said), "{field} = {value}: {found:?} does not say {said:?}");
    }
    let found = refused(&[
        ("num_attention_heads", json!(128)),
        ("head_dim", absent),
        ("num_key_value_heads", json!(1)),
    ]);
    assert!(found.contains("`head_dim` is 0"), "{found}");
}

#[test]
fn settings_that_transformers_would_pass_over_or_that_contradict_are_refused_for_every_architecture() {
    let described = |name: &str, change: &dyn Fn(&mut Json)| {
        let text = std::fs::read(fixture(name).join("config.json")).unwrap();
        let mut config: Json = serde_json::from_slice(&text).unwrap();
        change(&mut config);
        arch::from_config(&config, "config.json").map(drop).map_err(|e| e.to_string())
    };
    let set = |field: &'static str, value: Json| move |config: &mut Json| config[field] = value.clone();
    let ignored = json!({ "rope_type": "default", "partial_rotary_factor": 0.5 });
    for (name, change, said) in [
        ("qwen3-moe-tiny", set("num_experts_per_tok", json!(8)), "8 experts a token of 7"),
        ("gpt-oss-tiny", set("num_experts_per_tok", json!(6)), "6 experts a token of 5"),
        ("minimax-m2-tiny", set("num_experts_per_tok", json!(99)), "99 experts a token"),
        ("glm4-moe-tiny", set("n_group", json!(5)), "in 5 groups"),
        ("glm4-moe-tiny", set("topk_group", json!(4)), "of which 4 are kept"),
        ("qwen3-moe-tiny", set("mlp_only_layers", json!([9])), "`mlp_only_layers` holds 9"),
        ("gemma3-tiny", set("attn_logit_softcapping", json!(50.0)), "`attn_logit_softcapping` is 50.0"),
        ("gemma3-tiny", set("final_logit_softcapping", json!(30.0)), "`final_logit_softcapping` is 30.0"),
        ("gemma3-tiny", set("sliding_window", json!(0)), "`sliding_window` is 0"),
        ("gemma4-tiny", set("num_kv_shared_layers", json!(4)), "no layer before them is like layer 1"),
        ("gemma4-tiny", set("vocab_size_per_layer_input", json!(9)), "`vocab_size_per_layer_input` is 9"),
        ("gemma4-tiny", set("use_bidirectional_attention", json!("all")), "is `all`; this architecture"),
        ("gemma4-tiny", set("per_layer_config", json!({"1": {"head_dim": 28}})), "names 1 layers, and 2"),
        ("gemma4-tiny", set("per_layer_config", json!({"0": {"head_dim": 28}})), "`0` is no global layer"),
        ("gemma4-tiny", set("rope_parameters", json!(null)), "`rope_parameters` is missing"),
        ("llama-tiny", set("partial_rotary_factor", json!(0.5)), "`partial_rotary_factor` is 0.5; in this"),
        ("qwen35-text-tiny", set("linear_num_key_heads", json!(4)), "`linear_num_key_heads` is 4"),
        ("qwen35-text-tiny", set("layer_types", json!(["full_attention"])), "`layer_types` lists 1 layers"),
        (
            "qwen35-text-tiny",
            set("layer_types", json!(["mamba", "mamba", "mamba", "mamba"])),
            "`layer_types` holds \"mamba\"",
        ),
        ("qwen35-moe-text-tiny", set("norm_topk_prob", json!(false)), "`norm_topk_prob` is false"),
        ("qwen3-next-tiny", set("mlp_only_layers", json!([9])), "`mlp_only_layers` holds 9"),
        ("smollm3-tiny", set("no_rope_layers", json!([1, 0])), "`no_rope_layers` lists 2 layers"),
        ("smollm3-tiny", set("no_rope_layers", json!([1, 2, 0])), "`no_rope_layers` holds 2"),
        ("smollm3-tiny", set("use_sliding_window", json!(false)), "`use_sliding_window` is false, but"),
        ("minimax-m2-tiny", set("attn_type_list", json!([1, 0])), "`attn_type_list` lists other kinds"),
        ("minimax-m2-tiny", set("layernorm_mlp_beta", json!(2.0)), "`layernorm_mlp_beta` is 2"),
        ("phi3-tiny", set("full_attn_mod", json!(2)), "`full_attn_mod` is 2"),
        (
            "phi3-longrope-tiny",
            set("rope_scaling", json!({"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]})),
            "`short_factor` is no list of 6 numbers",
        ),
        ("granite-tiny", set("residual_multiplier", json!(0)), "`residual_multiplier` is 0"),
        ("lfm2-tiny", set("conv_L_cache", json!(1)), "`conv_L_cache` is 1, a convolution that sees no"),
        ("lfm2-old-config-tiny", set("conv_dim", json!(64)), "`conv_dim` is 64"),
        ("lfm3-tiny", set("use_sandwich_norm", json!(false)), "`use_sandwich_norm` is false"),
        ("lfm3-tiny", set("layer_types", json!(["conv", "mamba", "conv", "conv"])), "holds \"mamba\""),
        ("lfm3-tiny", set("rope_parameters", json!(null)), "`rope_parameters` is missing"),
        (
            "lfm3-tiny",
            set(
                "rope_parameters",
                json!({ "full_attention": ignored, "sliding_attention": { "rope_type": "default" } }),
            ),
            "`partial_rotary_factor` is 0.5, and `rope_type` `default`",
        ),
        ("lfm2-moe-tiny", set("use_expert_bias", json!(false)), "`use_expert_bias` is false"),
        (
            "granite-hybrid-tiny",
            set("mamba_n_groups", json!(4)),
            "`mamba_n_groups` is 4, which does not divide",
        ),
        ("granite-hybrid-tiny", set("mamba_expand", json!(3)), "`mamba_expand` is 3, but 6 heads"),
        ("granite-hybrid-tiny", set("time_step_limit", json!([0.0, 0.1])), "only a lower limit"),
        ("nemotron-h-moe-tiny", set("mlp_hidden_act", json!("silu")), "`mlp_hidden_act` is `silu`"),
        ("nemotron-h-moe-tiny", set("layers_block_type", json!(["mamba", "glu"])), "holds `glu`"),
        ("nemotron-h-moe-tiny", set("moe_latent_size", json!(8)), "experts of narrower inputs"),
        ("olmo3-tiny", set("rope_parameters", json!({"rope_theta": 5e5})), "`full_attention` is missing"),
        ("exaone4-tiny", set("sliding_window", json!(null)), "`sliding_window` is missing, but layers"),
        ("exaone4-tiny", set("layer_types", json!(null)), "`sliding_window_pattern` is \"LLLG\""),
        (
            "mistral3-nested-tiny",
            set("text_config", json!({"model_type": "qwen3"})),
            "`model_type` is `qwen3`; this architecture",
        ),
        ("deepseek-v2-tiny", set("topk_method", json!("noaux_tc")), "`topk_method` is `noaux_tc`"),
        ("deepseek-v2-tiny", set("norm_topk_prob", json!(true)), "`norm_topk_prob` is true"),
        ("deepseek-v2-tiny", set("topk_group", json!(4)), "of which 4 are kept"),
        ("deepseek-v3-tiny", set("qk_rope_head_dim", json!(9)), "`qk_rope_head_dim` is 9; rotary"),
        ("deepseek-v3-tiny", set("attention_bias", json!(true)), "`attention_bias` is true"),
        ("deepseek-v3-tiny", set("index_topk", json!(8)), "`index_topk` is 8, a field"),
        ("deepseek-v32-tiny", set("index_topk", json!(0)), "`index_topk` is 0, not a whole number from 1"),
        ("deepseek-v32-tiny", set("index_head_dim", json!(8)), "`index_head_dim` is 8, less than the 10"),
        (
            "deepseek-v32-tiny",
            set("indexer_rope_interleave", json!(true)),
            "`indexer_rope_interleave` is true",
        ),
        ("deepseek-v32-tiny", set("layer_types", json!(["full_attention"])), "`layer_types` does not list 3"),
        ("deepseek-v32-tiny", set("q_lora_rank", json!(null)), "`q_lora_rank` is missing"),
        (
            "glm-moe-dsa-tiny",
            set("indexer_types", json!(["shared", "full", "full"])),
            "the first one its own",
        ),
        ("glm-moe-dsa-tiny", set("moe_router_dtype", json!("bfloat16")), "`moe_router_dtype` is `bfloat16`"),
        (
            "glm4-moe-lite-tiny",
            set("mlp_layer_types", json!(["sparse", "dense", "sparse"])),
            "does not list 3",
        ),
    ] {
        let found = described(name, &change).unwrap_err();
        assert!(found.contains(said), "{name}: {found:?} does not say {said:?}");
    }
    let nested = |change: &dyn Fn(&mut Json)| {
        described("mistral3-nested-tiny", &|config| change(&mut config["text_config"]["rope_parameters"]))
            .unwrap_err()
    };
    let unscaled = nested(&|rope| rope["llama_4_scaling_beta"] = Json::Null);
    assert!(unscaled.contains("`llama_4_scaling_beta` is missing"), "{unscaled}");
    let plain = nested(&|rope| *rope = json!({"rope_type": "default", "rope_theta": 1e4}));
    assert!(plain.contains("`rope_parameters` is not `yarn`"), "{plain}");
    // Harmless fields that released files carry.
    for (name, change) in [
        ("llama-tiny", set("is_llama_config", json!(true))),
        ("llama-tiny", set("transformers.js_config", json!({"kv_cache_dtype": {"q4f16": "float16"}}))),
        ("minimax-m2-tiny", set("mlp_intermediate_size", json!(8192))),
        ("minimax-m2-tiny", set("layernorm_mlp_beta", json!(1.0))),
        ("qwen35-text-tiny", set("output_gate_type", json!("swish"))),
        ("qwen35-moe-text-tiny", set("norm_topk_prob", json!(true))),
        ("smollm3-tiny", set("pretraining_tp", json!(2))),
        ("gemma3-tiny", set("cache_implementation", json!("hybrid"))),
    ] {
        assert_eq!(described(name, &change), Ok(()), "{name}");
    }
}

#[test]
fn a_context_past_the_one_that_rotary_factors_are_for_is_refused() {
    let engine = engine(&fixture("phi3-longrope-tiny"), 64);
    let decoder = engine.decoder();
    assert_eq!(decoder.spec().max_positions, 2048);
    let tokens = vec![5; 2049];
    let mut cache = decoder.cache(tokens.len()).unwrap();
    decoder.fill_cache(&tokens[..2048], &mut cache, &mut NoObserver).unwrap();
    let error = decoder.fill_cache(&tokens[2048..], &mut cache, &mut NoObserver).unwrap_err().to_string();
    assert!(error.contains("position 2048 is past the 2048") && error.contains("`long_factor`"), "{error}");
}

#[test]
fn a_missing_window_of_mistral_is_that_of_its_first_model_and_null_is_none() {
    let text = std::fs::read(fixture("mistral-tiny").join("config.json")).unwrap();
    let mut config: Json = serde_json::from_slice(&text).unwrap();
    let window = |config: &Json| {
        let (_, spec) = arch::from_config(config, "config.json").unwrap();
        spec.layers[0].attention().unwrap().window
    };
    assert_eq!(window(&config), Some(23));
    config["sliding_window"] = Json::Null;
    assert_eq!(window(&config), None);
    config.as_object_mut().unwrap().remove("sliding_window");
    assert_eq!(window(&config), Some(4096));
}

#[test]
fn a_config_of_fewer_layers_than_the_checkpoint_has_is_refused_even_where_prediction_layers_may_follow() {
    let dir = tempfile::tempdir().unwrap();
    for (name, layers, left) in
        [("glm4-moe-tiny", 2, "layers.2"), ("minimax-m2-tiny", 1, "layers.1"), ("qwen3-tiny", 2, "layers.2")]
    {
        let folder = dir.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        std::fs::copy(fixture(name).join("model.safetensors"), folder.join("model.safetensors")).unwrap();
        let text = std::fs::read(fixture(name).join("config.json")).unwrap();
        let mut config: Json = serde_json::from_slice(&text).unwrap();
        config["num_hidden_layers"] = json!(layers);
        config["num_nextn_predict_layers"] = json!(0);
        if let Some(types) = config["layer_types"].as_array_mut() {
            types.truncate(layers);
        }
        std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
        let found = refusal(&folder);
        assert!(found.contains("does not use") && found.contains(left), "{name}: {found}");
    }
}

#[test]
fn the_rotary_settings_of_earlier_transformers_give_the_same_model() {
    let dir = tempfile::tempdir().unwrap();
    for name in LLAMA {
        let mut model = Llama::fixture(name);
        let mut scaling = model.config["rope_parameters"].take();
        model.config["rope_theta"] = scaling["rope_theta"].take();
        if scaling["rope_type"] != "default" {
            model.config["rope_scaling"] = scaling;
        }
        let spec = |path: &Path| OpenModel::open(&[path.to_owned()]).unwrap().spec().clone();
        assert_eq!(spec(&model.write_folder(dir.path())), spec(&fixture(name)));
    }
}

#[test]
fn folders_without_a_whole_model_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    assert!(refusal(dir.path()).contains("config.json"));
    std::fs::write(dir.path().join("config.json"), "{").unwrap();
    assert!(refusal(dir.path()).contains("not valid JSON"));
    std::fs::write(dir.path().join("config.json"), "[1]").unwrap();
    assert!(refusal(dir.path()).contains("not an object"));
    let mut model = Llama::fixture(TINY[0]);
    let empty = Tensor::zeros((0, 72), DType::F32, &Device::Cpu).unwrap();
    model.tensors.insert("model.embed_tokens.weight".into(), empty);
    let found = refusal(&model.write_folder(dir.path()));
    assert!(found.contains("`model.embed_tokens.weight` has shape [0, 72]"), "{found}");
}

#[test]
fn every_wrong_value_of_gguf_metadata_is_refused_by_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let model = Llama::fixture(TINY[0]);
    let tensors = model.gguf_tensors(GgmlDType::F32);
    let refused = |change: &[(&'static str, Option<Value>)]| {
        let mut metadata = model.metadata();
        for (key, value) in change {
            metadata.retain(|(k, _)| k != key);
            metadata.extend(value.clone().map(|value| (*key, value)));
        }
        refusal(&write_gguf(&path, &metadata, &tensors))
    };
    assert_eq!(refused(&[]), "loaded");
    for (key, value, said) in [
        ("block_count", Value::U32(0), "`llama.block_count` is 0"),
        ("block_count", Value::U32(1 << 24), "`llama.block_count` is 16777216"),
        ("block_count", Value::U32(4), "`blk.3.attn_norm.weight` is missing"),
        ("block_count", Value::U32(2), "does not use: `blk.2"),
        ("block_count", Value::String("3".into()), "llama.block_count"),
        ("attention.head_count", Value::U32(0), "`llama.attention.head_count` is 0"),
        (
            "attention.head_count",
            Value::U32(5),
            "`llama.attention.head_count_kv` is 2, which does not divide the 5",
        ),
        (
            "attention.head_count_kv",
            Value::U32(4),
            "`llama.attention.head_count_kv` is 4, which does not divide the 6",
        ),
        (
            "attention.key_length",
            Value::U32(13),
            "`llama.attention.value_length` is 12, but key heads are 13 wide",
        ),
        ("rope.dimension_count", Value::U32(5), "`llama.rope.dimension_count` is 5"),
        ("rope.dimension_count", Value::U32(14), "`llama.rope.dimension_count` is 14"),
        (
            "logit_scale",
            Value::F32(2.0),
            "`llama.logit_scale` is a key that this architecture is not known to have",
        ),
        ("rope.freq_base", Value::F32(0.0), "`llama.rope.freq_base` is 0"),
        ("rope.freq_base", Value::F32(-1.0), "`llama.rope.freq_base` is -1"),
        ("attention.layer_norm_rms_epsilon", Value::F32(f32::NAN), "layer_norm_rms_epsilon` is NaN"),
        ("attention.layer_norm_rms_epsilon", Value::F32(-0.5), "layer_norm_rms_epsilon` is -0.5"),
        ("context_length", Value::U32(0), "`llama.context_length` is 0"),
        ("embedding_length", Value::U32(64), "where the config implies [267, 64]"),
        ("expert_count", Value::U32(8), "`llama.expert_count` is 8"),
        ("rope.scaling.type", Value::String("yarn".into()), "`llama.rope.scaling.factor` is missing"),
    ] {
        let key: &'static str = format!("llama.{key}").leak();
        let found = refused(&[(key, Some(value.clone()))]);
        assert!(found.contains(said), "{key} = {value:?}: {found:?} does not say {said:?}");
    }
    // More heads than the hidden size, and no head_dim.
    let found = refused(&[
        ("llama.attention.head_count", Some(Value::U32(128))),
        ("llama.attention.key_length", None),
        ("llama.attention.value_length", None),
        ("llama.rope.dimension_count", None),
    ]);
    assert!(found.contains("`llama.attention.key_length` is 0"), "{found}");
    let found = refused(&[("general.architecture", Some(Value::String("rwkv".into())))]);
    assert!(found.contains("unknown architecture `rwkv`"), "{found}");
}

type NamedTensors = Vec<(String, QTensor)>;

#[test]
fn gguf_tensors_that_are_missing_or_of_another_shape_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let model = Llama::fixture(TINY[0]);
    let refused = |change: &dyn Fn(&mut NamedTensors)| {
        let mut tensors = model.gguf_tensors(GgmlDType::F32);
        change(&mut tensors);
        refusal(&write_gguf(&path, &model.metadata(), &tensors))
    };
    let numbers = |n: usize| {
        QTensor::quantize(&Tensor::ones(n, DType::F32, &Device::Cpu).unwrap(), GgmlDType::F32).unwrap()
    };
    let found = refused(&|tensors| tensors.retain(|(name, _)| name != "token_embd.weight"));
    assert!(found.contains("`token_embd.weight` is missing"), "{found}");
    let found = refused(&|tensors| tensors.push(("rope_freqs.weight".into(), numbers(5))));
    assert!(found.contains("`rope_freqs.weight` has shape [5]"), "{found}");
    let found = refused(&|tensors| tensors.push(("blk.0.ffn_up.bias".into(), numbers(100))));
    assert!(found.contains("does not use: `blk.0.ffn_up.bias`"), "{found}");
    let found = refused(&|tensors| tensors.push(("blk.0.attn_q.bias".into(), numbers(72))));
    assert!(found.contains("`blk.0.attn_k.bias` is missing"), "{found}");
}

#[test]
fn a_cache_that_no_memory_can_hold_is_an_error_with_its_size() {
    let decoder = engine(&fixture(TINY[0]), 64);
    let decoder = decoder.decoder();
    let error = decoder.cache(1 << 42).unwrap_err().to_string();
    assert!(error.contains("4398046511104 tokens") && error.contains("MiB"), "{error}");
    let error = decoder.cache(usize::MAX / 2).unwrap_err().to_string();
    assert!(error.contains("shorter context"), "{error}");
    assert_eq!(decoder.cache(0).unwrap().capacity(), 0);
}

#[test]
fn weights_that_are_not_numbers_are_found_in_the_output_with_their_position() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = Llama::fixture(TINY[0]);
    // Only token 9's embedding is broken: earlier positions are valid.
    let name = "model.embed_tokens.weight";
    let mut rows: Vec<Vec<f32>> = model.tensors[name].to_vec2().unwrap();
    rows[9][3] = f32::NAN;
    model.tensors.insert(name.into(), Tensor::new(rows, &Device::Cpu).unwrap());
    // One token per chunk: within a chunk, zero weights times NaN values of later tokens are NaN.
    let engine = engine(&model.write_folder(dir.path()), 1);
    let read = |engine: &Engine, tokens: &[u32]| {
        let mut cache = engine.decoder().cache(10).unwrap();
        engine.prefill(&mut cache, tokens, 5, &mut NoObserver, &mut |_| true).map(drop)
    };
    assert!(read(&engine, &[1, 2, 3, 4, 5]).is_ok());
    match read(&engine, &[1, 2, 3, 9, 5]) {
        Err(EngineError::NotFinite { position: 3, .. }) => {}
        other => panic!("{other:?}"),
    }
}
