use super::*;
use crate::attention::AttentionKernel;
use crate::evict::Keep;
use crate::model::weights::BlockType;
use crate::model::{Kept, ModelDescription, Packed, PackedBytes, PackedWeight};

fn description(name: &str) -> ModelDescription {
    ModelDescription::released(name).unwrap().unwrap()
}

/// The plan of a released model where free memory is unknown.
fn planned(name: &str, request: &MemoryRequest) -> MemoryPlan {
    MemoryPlan::new(&description(name), request, &[None])
}

fn request(context: usize) -> MemoryRequest {
    MemoryRequest::new(context, DType::F32, vec![DeviceName::Cpu])
}

fn bf16(context: usize, cards: usize) -> MemoryRequest {
    let devices = (0..cards).map(DeviceName::Cuda).collect();
    MemoryRequest { devices, dtype: DType::BF16, ..request(context) }
}

#[test]
fn weights_and_cache_are_those_that_the_published_sizes_imply() {
    let plan = planned("smollm2-135m", &request(8192));
    assert_eq!(plan.cache(), 2 * 30 * 3 * 64 * 8192 * 4);
    assert_eq!(plan.weights(), 134_515_008 * 4);
    // Half precision halves both but for two norms a layer and the last one, which stay f32.
    let plan = planned("smollm2-135m", &bf16(8192, 1));
    assert_eq!(plan.cache(), 30 * 3 * 64 * 8192 * 2 * 2);
    assert_eq!(plan.weights(), 134_515_008 * 2 + 61 * 576 * 2);
}

#[test]
fn a_window_bounds_the_cache_and_linear_layers_have_a_state_of_fixed_size() {
    let cache = |name: &str, context| planned(name, &bf16(context, 1)).cache();
    // gpt-oss-20b: 12 full layers, 12 with a window of 128 (127 plus a chunk).
    assert_eq!(cache("gpt-oss-20b", 100_000), 12 * (100_000 + 127 + 1024) * 8 * 64 * 2 * 2);
    // Gemma 3 270M: 3 full layers, 15 with a window of 512.
    assert_eq!(cache("gemma3-270m", 32_768), (3 * 32_768 + 15 * (511 + 1024)) * 256 * 2 * 2);
    // Qwen3.5-9B: 8 attention layers; 24 with 3 convolution inputs and an f32 state.
    let linear = 3 * (2 * 16 * 128 + 32 * 128) * 2 + 32 * 128 * 128 * 4;
    assert_eq!(cache("qwen3.5-9b", 131_072), 8 * 131_072 * 4 * 256 * 2 * 2 + 24 * linear);
}

#[test]
fn latent_attention_caches_one_vector_a_token_for_all_heads() {
    // 512 numbers of the latent vector and 64 of the rotated key in each of 27 layers, once for keys and values of 16 heads.
    let token = 27 * (512 + 64) * 2;
    let plan = |request| planned("deepseek-v2-lite-chat", &request);
    assert_eq!(plan(bf16(32_768, 1)).cache(), 32_768 * token);
    let with = MemoryRequest { branches: Branches::for_answers(3, 100), ..bf16(32_768, 1) };
    assert_eq!(plan(with).cache(), (32_768 + 3 * (256 + 512 + 100)) * token);
    let with = MemoryRequest { keeps: vec![Keep::Tokens(300)], ..bf16(32_768, 1) };
    assert_eq!(plan(with).cache(), (32_768 + 300) * token);
    // Queries of 192, the latent vector with its norm, keys and values of 128 made of it, and the output, per layer.
    let heads = 16 * (192 * 2048 + 2 * 128 * 512 + 128 * 2048);
    let attention = heads + (512 + 64) * 2048 + 512;
    let expert = 3 * 2048 * 1408;
    let sparse = 26 * (64 * (expert + 2048) + 2 * expert);
    let rest = 27 * 2 * 2048 + 3 * 2048 * 10_944 + 2 * 102_400 * 2048 + 2048;
    // Routers and norms stay f32.
    let f32s = 26 * 64 * 2048 + 55 * 2048;
    assert_eq!(plan(bf16(32_768, 1)).weights(), (27 * attention + sparse + rest + f32s) * 2);
}

#[test]
fn layers_that_share_keys_have_no_cache_and_per_layer_embeddings_are_counted() {
    // Gemma 4 E4B: of the first 24 layers 4 are full, with wider heads; the other 18 share their keys.
    let plan = planned("gemma4-e4b", &bf16(100_000, 1));
    assert_eq!(plan.cache(), (4 * 100_000 * 512 + 20 * (511 + 1024) * 256) * 2 * 2 * 2);
    // Of its 7.46 billion parameters 2.85 are per-layer embeddings and their projection.
    // Four norms a layer and the last one are f32.
    assert_eq!(plan.weights(), 7_463_013_418 * 2 + 169 * 2560 * 2);
    // 26B-A4B: key/value heads by kind of layer. Routers, the scales of 128 experts and norms are f32.
    let plan = planned("gemma4-26b-a4b", &bf16(100_000, 1));
    assert_eq!(plan.cache(), (5 * 100_000 * 2 * 512 + 25 * (1023 + 1024) * 8 * 256) * 2 * 2);
    assert_eq!(plan.weights(), 25_233_141_790 * 2 + (30 * 128 * (2816 + 1) + 121 * 2816) * 2);
}

#[test]
fn branches_take_their_own_keys_windows_and_states_beside_the_cache() {
    let added = |name: &str| {
        let with = MemoryRequest { branches: Branches::for_answers(3, 100), ..bf16(32_768, 1) };
        planned(name, &with).cache() - planned(name, &bf16(32_768, 1)).cache()
    };
    // From the last border of the shared part: question and answer.
    let tokens = 256 + 512 + 100;
    assert_eq!(added("smollm2-135m"), 3 * 30 * tokens * 3 * 64 * 2 * 2);
    // A window buffer has 256 spare tokens.
    assert_eq!(added("gemma3-270m"), 3 * (3 * tokens + 15 * (511 + 256)) * 256 * 2 * 2);
    let linear = 3 * (2 * 16 * 128 + 32 * 128) * 2 + 32 * 128 * 128 * 4;
    assert_eq!(added("qwen3.5-9b"), 3 * (8 * tokens * 4 * 256 * 2 * 2 + 24 * linear));
    assert_eq!(Branches::for_answers(1, 100), Branches::default(), "one alone is answered in the cache");
}

#[test]
fn evictions_take_what_they_keep_beside_the_cache_at_layers_of_full_attention() {
    let of = |name: &str, keeps: &[Keep], count: usize| {
        let without = MemoryRequest { branches: Branches { count, tokens: 1 }, ..bf16(10_000, 1) };
        let with = MemoryRequest { keeps: keeps.to_vec(), ..without.clone() };
        planned(name, &with).cache() - planned(name, &without).cache()
    };
    let added = |name: &str, keeps: &[Keep]| of(name, keeps, 0);
    let keeps = [Keep::Share(0.25), Keep::Tokens(300)];
    assert_eq!(added("smollm2-135m", &keeps), 30 * 2500 * 3 * 64 * 2 * 2);
    assert_eq!(added("smollm2-135m", &keeps[1..]), 30 * 300 * 3 * 64 * 2 * 2);
    assert_eq!(added("smollm2-135m", &[Keep::Tokens(20_000)]), 30 * 10_000 * 3 * 64 * 2 * 2);
    // As many as branches that decode together, the largest.
    let keeps = [Keep::Tokens(300), Keep::Share(0.25), Keep::Tokens(700)];
    assert_eq!(of("smollm2-135m", &keeps, 2), 30 * 3200 * 3 * 64 * 2 * 2);
    assert_eq!(of("smollm2-135m", &keeps, 8), 30 * 3500 * 3 * 64 * 2 * 2);
    assert_eq!(added("gemma3-270m", &keeps), 3 * 2500 * 256 * 2 * 2);
    assert_eq!(added("qwen3.5-9b", &keeps), 8 * 2500 * 4 * 256 * 2 * 2);
}

#[test]
fn the_observer_keeps_the_keys_of_linear_layers_for_the_whole_context() {
    let observer = |context| planned("qwen3.5-9b", &bf16(context, 1)).observer();
    // Only this grows with the context, in 24 layers: 16 keys of 128 in bf16 and two f32 per value head. Softmax layers work in blocks.
    let history = 24 * (16 * 128 * 2 + 32 * 2 * 4) * 131_072u64;
    assert_eq!(observer(262_144) - observer(131_072), history);
}

#[test]
fn our_own_kernels_hold_no_scores_and_their_parts_grow_with_keys_and_branches() {
    let activations = |request: MemoryRequest| planned("llama-3.1-8b-instruct", &request).activations();
    let by = |kernel, context| MemoryRequest { kernel, ..bf16(context, 1) };
    let (products, fused) = (by(AttentionKernel::Products, 131_072), by(AttentionKernel::Auto, 131_072));
    // A block of 64 Mi f32 scores and bf16 weights, and the gathered f32 output. The feed-forward of 14,336 lies between the two plans.
    let width = 4 * 4096 * 2 + 4 * 1024 * 2;
    let feed_forward = 3 * 14_336 * 2;
    assert!(1024 * width < 1024 * feed_forward);
    let scores = 64 * (1 << 20) * 6 + 1024 * (width + 4096 * 4);
    assert_eq!(activations(products.clone()) - activations(fused.clone()), scores - 1024 * feed_forward);
    // Per branch: parts of 256 keys with 128 sums and two numbers per head, and pieces of 32.
    let branched = |count| MemoryRequest { branches: Branches { count, tokens: 1 }, ..fused.clone() };
    let parts = 32 * (514 * 130 + (4096 + 2 + 512) * 2) * 4;
    assert_eq!(activations(branched(200)) - activations(branched(100)), 100 * parts);
    // f32 always uses matrix products, but not for row sums.
    let in_f32 = |kernel| {
        planned("llama-3.1-8b-instruct", &MemoryRequest { dtype: DType::F32, ..by(kernel, 131_072) })
    };
    let [products, auto] = [AttentionKernel::Products, AttentionKernel::Auto].map(in_f32);
    assert_eq!(products.activations(), auto.activations());
    assert!(products.observer() > auto.observer());
    // Only CUDA has a choice of kernels.
    let cpu =
        |kernel| planned("smollm2-135m", &MemoryRequest { kernel, dtype: DType::BF16, ..request(8192) });
    assert_eq!(cpu(AttentionKernel::Products), cpu(AttentionKernel::Fused));
}

#[test]
fn routers_and_other_weights_that_stay_f32_are_counted_so() {
    let plan = planned("qwen3-235b-a22b", &bf16(4096, 1));
    let parameters = description("qwen3-235b-a22b").spec.parameters() as u64;
    assert_eq!(plan.weights(), parameters * 2 + (94 * 128 + 189) * 4096 * 2);
}

#[test]
fn shares_of_several_devices_add_up_to_the_whole_and_a_tied_head_is_copied_to_the_last() {
    for name in ModelDescription::released_names() {
        let model = description(name);
        let one = MemoryPlan::new(&model, &bf16(32_768, 1), &[Some(1)]);
        for cards in [2, 4] {
            let many = MemoryPlan::new(&model, &bf16(32_768, cards), &vec![Some(1_000_000_000); cards]);
            let copy = if model.spec.tied { (model.spec.vocab * model.spec.hidden * 2) as u64 } else { 0 };
            assert_eq!(many.weights(), one.weights() + copy, "{name} on {cards}");
            assert_eq!(many.cache(), one.cache(), "{name} on {cards}");
            assert!(many.places.is_sorted());
            assert_eq!(many.shares.iter().map(|s| s.layers).sum::<usize>(), model.spec.layers.len());
            assert!(many.shares.iter().all(|s| s.layers > 0), "{name} on {cards}");
        }
    }
    // A device listed twice has one embedding, one memory and one process.
    let twice = MemoryRequest { devices: vec![DeviceName::Cpu; 2], ..request(4096) };
    let model = description("smollm2-135m");
    let (twice, once) =
        (MemoryPlan::new(&model, &twice, &[None; 2]), planned("smollm2-135m", &request(4096)));
    assert_eq!(twice.weights(), once.weights());
    let processes: u64 = twice.shares.iter().map(|s| s.process).sum();
    assert_eq!(processes, once.shares[0].process);
    let needed = twice.total();
    assert_eq!(twice.fits(&[Some(needed); 2]), Some(true));
    assert_eq!(twice.fits(&[Some(needed - 1); 2]), Some(false));
}

#[test]
fn a_plan_fits_when_every_device_has_what_is_asked_of_it() {
    let model = description("llama-3.3-70b-instruct");
    let free = [Some(90_000_000_000), Some(90_000_000_000)];
    let plan = MemoryPlan::new(&model, &bf16(8192, 2), &free);
    assert_eq!(plan.fits(&free), Some(true));
    assert_eq!(plan.fits(&[free[0], None]), None);
    // Enough in total, but the second is too small.
    let small = [Some(170_000_000_000), Some(10_000_000_000)];
    assert_eq!(plan.fits(&small), Some(false));
    assert_eq!(MemoryPlan::new(&model, &bf16(8192, 2), &small).fits(&small), Some(true));
}

/// SmolLM2 with all matrices in Q4_1.
fn quantised() -> ModelDescription {
    let model = description("smollm2-135m");
    let of = |sizes: &[(u64, u64)]| {
        let mut sum = PackedBytes::default();
        for &(rows, cols) in sizes {
            sum.packed += PackedWeight::bytes(BlockType::Q4_1, rows, cols).unwrap_or_default();
            sum.dense += rows * cols * 4;
            sum.scratch = sum.scratch.max(rows * cols * 4);
        }
        sum
    };
    let layer = [(576, 576), (192, 576), (192, 576), (576, 576), (1536, 576), (1536, 576), (576, 1536)];
    let packed = Packed { layers: vec![of(&layer); model.spec.layers.len()], head: of(&[(49_152, 576)]) };
    ModelDescription { packed: Some(packed), ..model }
}

#[test]
fn quantised_weights_are_kept_alone_only_where_their_values_do_not_fit_beside_them() {
    let model = quantised();
    let planned = |kept, free| MemoryPlan::new(&model, &MemoryRequest { kept, ..request(4096) }, &[free]);
    let (dense, least) = (planned(Some(Kept::Dense), None), planned(Some(Kept::Quantised), None));
    // 20 bytes per 32 weights; norms and the embedding (the tied head) in f32.
    let (all, matrices, embedding) = (134_515_008, 30 * 3_538_944, 49_152 * 576);
    assert_eq!(dense.weights(), all * 4 + (matrices + embedding) * 20 / 32);
    assert_eq!(least.weights(), (all - matrices) * 4 + (matrices + embedding) * 20 / 32);
    assert_eq!(least.activations(), dense.activations() + 1536 * 576 * 4);
    let kept = |free| planned(None, free).kept;
    assert_eq!(kept(None), Some(Kept::Dense));
    assert_eq!(kept(Some(dense.total())), Some(Kept::Dense));
    assert_eq!(kept(Some(dense.total() - 1)), Some(Kept::Quantised));
    assert_eq!(planned(None, Some(least.total())).fits(&[Some(least.total())]), Some(true));
    assert_eq!(planned(None, Some(least.total() - 1)).fits(&[Some(least.total() - 1)]), Some(false));
    assert_eq!(MemoryPlan::new(&model, &bf16(4096, 1), &[Some(1)]).kept, None);
    assert_eq!(MemoryPlan::new(&description("smollm2-135m"), &request(4096), &[Some(1)]).kept, None);
}

#[test]
fn a_refusal_of_dense_weights_names_the_quantised_ones_that_fit() {
    let model = quantised();
    let forced = MemoryRequest { kept: Some(Kept::Dense), ..request(4096) };
    let free = MemoryPlan::new(&model, &forced, &[None]).total() - 1;
    let refusal = check("m", &model, &forced, &[Some(free)]).unwrap_err().to_string();
    assert!(refusal.contains("--weights quantised"), "{refusal}");
    assert!(check("m", &model, &request(4096), &[Some(free)]).is_ok());
}

#[test]
fn a_refusal_names_only_changes_that_fit() {
    let model = description("smollm2-135m");
    let plan = |context| MemoryPlan::new(&model, &request(context), &[None]).total();
    let needed = plan(100_000);
    assert!(check("m", &model, &request(100_000), &[Some(needed)]).is_ok());
    let available = needed / 2;
    let text = check("m", &model, &request(100_000), &[Some(available)]).unwrap_err().to_string();
    let context = text.split("--context ").nth(1).and_then(|t| t.split(';').next()).unwrap();
    let context: usize = context.trim().parse().unwrap();
    assert!(plan(context) <= available, "{text}");
    assert!(plan(context + 1) > available, "{text}");
    assert!(text.contains("free on cpu"), "{text}");
}

#[test]
fn norms_take_gram_matrices_of_softmax_layers_and_attributions_one_layers_output_weights() {
    let added = |name: &str, observed: ObservedSpans| {
        let with = planned(name, &MemoryRequest { observed, ..request(8192) });
        let without = planned(name, &request(8192));
        assert_eq!(with.total() - with.observer(), without.total() - without.observer(), "{name}");
        with.observer() - without.observer()
    };
    let norms = ObservedSpans { norms: true, ..ObservedSpans::default() };
    let attributed = ObservedSpans { attributed: true, ..ObservedSpans::default() };
    // 30 layers, 9 heads of 64, and a residual stream of 576.
    let outputs = 9 * 64 * 576 * 4;
    assert_eq!(added("smollm2-135m", norms), 30 * 9 * 64 * 64 * 4 + outputs);
    assert_eq!(added("smollm2-135m", attributed), outputs);
    // With latent attention a head reads 512 + 64 numbers: made of values of 128, then padded.
    let outputs = 16 * (2 * 576 + 128) * 2048 * 4;
    assert_eq!(added("deepseek-v2-lite-chat", norms), 27 * 16 * 576 * 576 * 4 + outputs);
    assert_eq!(added("deepseek-v2-lite-chat", attributed), outputs);
    // Of 32 layers 8 have softmax attention, with 16 heads of 256.
    let model = description("qwen3.5-9b");
    let with = MemoryRequest { observed: norms, ..request(8192) };
    let grams = model.spec.layers.iter().map(|layer| arithmetic::observer_grams(layer, &with)).sum::<u64>();
    assert_eq!(grams, 8 * 16 * 256 * 256 * 4);
    // On a card also the norms of all values, and blocks.
    let moment = |observed| {
        let (model, with) =
            (description("llama-3.1-8b-instruct"), MemoryRequest { observed, ..bf16(131_072, 1) });
        let moment = |layer| arithmetic::observer_moment(&model.spec, layer, &with, DeviceName::Cuda(0));
        model.spec.layers.iter().map(moment).max().unwrap()
    };
    let expected: u64 = 32 * 131_072 * 4 + 2 * 32 * 4096 * 128 * 4 + (16 << 20) * 8;
    assert!(moment(ObservedSpans::default()) < expected);
    assert_eq!(moment(norms), expected);
}

#[test]
fn what_an_observer_keeps_of_long_thoughts_is_in_the_plan_for_every_branch() {
    let observed = |generated| ObservedSpans { generated, ..ObservedSpans::default() };
    let plan = |count: usize, generated: usize| {
        let (branches, observed) = (Branches::for_answers(count, generated), observed(generated));
        planned("qwen3.5-9b", &MemoryRequest { branches, observed, ..bf16(131_072, 1) }).observer()
    };
    // 24 layers, 16 key heads of 128, 32 value heads: keys, decay and strength per token, and its query.
    let (token, query) = (16 * 128 * 2 + 2 * 32 * 4, 16 * 128 * 2 + 4 * 512);
    assert_eq!(plan(1, 4096) - plan(1, 0), 24 * 4096 * query);
    let own = 256 + 512 + 4096;
    assert_eq!(plan(3, 4096) - plan(1, 0), 24 * 3 * (own * token + 4096 * query));
    assert_eq!(plan(1, 4096), plan(0, 4096), "one alone is answered in the cache");
    // Attention layers sum each row as it comes.
    let llama = |generated| {
        let request = MemoryRequest { observed: observed(generated), ..bf16(8192, 1) };
        planned("smollm2-135m", &request).observer()
    };
    assert_eq!(llama(0), llama(4096));
}

#[test]
fn an_observer_of_a_delta_layer_keeps_what_the_plan_says_through_prompt_thought_and_answer() {
    use crate::attention::delta::Rule;
    use crate::attention::{AnswerRows, DeltaSite, Event, MassObserver, Observer, Point};
    use crate::span::Span;
    use candle_core::{Device, Tensor};

    const SHARED: usize = 96;
    const OWN: usize = 7;
    const GENERATED: usize = 33;
    let model = description("qwen3.5-9b");
    let spec = &model.spec;
    let layer = spec.layers.iter().find(|layer| layer.linear().is_some()).unwrap();
    let d = layer.linear().unwrap();
    let show = |observer: &mut MassObserver, from: usize, l: usize| {
        let zeros =
            |heads: usize, dim: usize| Tensor::zeros((l, heads, dim), DType::F32, &Device::Cpu).unwrap();
        let (qk, gb) = (zeros(d.keys() / d.key_dim, d.key_dim), zeros(d.value_heads, 1).squeeze(2).unwrap());
        let site = DeltaSite { layer: 0, offset: from };
        assert!(observer.wants(Point::LinearAttention(&site)).inputs);
        let event =
            Event::LinearAttention { site: &site, rule: Rule::Delta, q: &qk, k: &qk, g: &gb, beta: &gb };
        observer.observe(event).unwrap();
    };
    // 1. A shared part, then two probes with question, thought and answer.
    let prompt = SHARED + OWN;
    let span = |label: &str, range| Span::new(label, range);
    let answer = AnswerRows { mean: Some(0), ..AnswerRows::default() };
    let before = MassObserver::new(Vec::new(), vec![span("history", 0..SHARED)], prompt).unwrap();
    let mut before = before.keeping(SHARED);
    show(&mut before, 0, SHARED);
    let mut kept = before.delta_bytes();
    for _ in 0..2 {
        let question = span("query", SHARED..prompt);
        let own = MassObserver::new(vec![question], vec![span("history", 0..SHARED)], prompt).unwrap();
        let mut fork = before.fork(&own.answering(answer), SHARED).unwrap();
        show(&mut fork, SHARED, OWN);
        (0..GENERATED).for_each(|at| show(&mut fork, prompt + at, 1));
        kept += fork.delta_bytes() - before.delta_bytes();
    }
    // 2. The plan adds only tensor overhead and waiting queries.
    let context = prompt + GENERATED;
    let branches = Branches { count: 2, tokens: OWN + GENERATED };
    let observed = ObservedSpans { generated: GENERATED, ..ObservedSpans::default() };
    let request = MemoryRequest { branches, observed, ..request(context) };
    let planned = arithmetic::observer_history(layer, &request);
    let queries = n(context) * n(d.keys()) * 4;
    let surroundings = 2 * n(GENERATED) * 4 * arithmetic::TENSOR;
    // The trunk is planned for the whole context; the prompt's last position is a row too.
    let (trunk, last) = (n(OWN + GENERATED) * (n(d.keys()) * 4 + n(d.value_heads) * 8), 2 * n(d.keys()) * 4);
    assert_eq!(planned - queries - surroundings - trunk, n(kept) - last);
}
