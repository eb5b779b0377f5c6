//! Memory of a request besides its KV cache: choices, recorded attention and reply. In bytes, slightly above measured values.

use super::attention_reply::Asked;
use super::attention_request::{Heads, count_heads};
use super::error::ApiError;
use super::memory::Held;
use palimpsest_core::engine::{Branch, Likelihood};
use palimpsest_core::model::{AttentionSpec, DecoderSpec};
use palimpsest_run::observe::Measure;

const MASS: u64 = 8 + 4;

/// f32 and its digits.
const NUMBER: u64 = 4 + 16;

/// Top key with weight: found, gathered, sorted, and its digits.
const KEY: u64 = 8 + 8 + 8 + 24;

const LIKELIHOOD: u64 = size_of::<Likelihood>() as u64 + 800;

/// Text and bookkeeping of a generated token.
const TOKEN: u64 = 256;

const READ: u64 = 16 + 4;

/// Token text, stored and serialised.
const TEXT: u64 = 96;

/// Name and range of a span.
const SPAN: u64 = 320;

/// Memory of choices; equal for the choices of one prompt.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    base: u64,
    token: u64,
    /// Per position with top keys; contained in the other two.
    keys: u64,
    /// Copies of the keys and values that an eviction keeps; contained in `base`.
    kept: u64,
}

impl Cost {
    /// One choice; `asked` is its attention request.
    pub fn of(prompt: &Branch, likeliest: Option<usize>, asked: Option<&Asked>, spec: &DecoderSpec) -> Self {
        let (observe, evict) = (&prompt.observe, &prompt.evict);
        let told = likeliest.map_or(0, |most| (most as u64 + 1) * LIKELIHOOD);
        let scored = observe.likeliest.map_or(0, |most| (most as u64 + 1) * LIKELIHOOD);
        let prompt = prompt.tokens.len() as u64;
        let spans = (observe.keys.len() + observe.rows.spans.len()) as u64;
        let mut cost = Cost {
            base: prompt * (8 + scored) + spans * SPAN + spec.vocab as u64 * 4,
            token: TOKEN + told,
            ..Cost::default()
        };
        let Some(asked) = asked else { return cost };
        // Logits of a reading, and stored values of all.
        if asked.readings() > 0 {
            cost.token += spec.vocab as u64 * 4 + asked.readings() as u64 * READ;
            cost.base += prompt * 4 * asked.readings() as u64;
        }
        if let Some(eviction) = evict {
            let full = spec.layers.iter().filter_map(|layer| layer.attention());
            let full = full.filter(|spec| spec.window.is_none());
            let width: usize = full.map(AttentionSpec::cached).sum();
            cost.kept = (eviction.keys() * width) as u64 * 4;
            cost.base += cost.kept;
        }
        let (softmax, linear) = count_heads(spec);
        let (softmax, heads) = (softmax as u64, (softmax + 2 * linear) as u64);
        let (layers, width) = (spec.layers.len() as u64, spec.hidden as u64);
        let attention = &asked.attention;
        let shown = match &attention.heads {
            Heads::Mean => layers,
            Heads::All => heads,
            Heads::These { pairs, .. } => pairs.len() as u64,
        };
        let columns = observe.keys.len() as u64 + 2;
        let row = columns * (heads * MASS + (shown + 2 * layers) * NUMBER);
        // A score's neutral request has its own row.
        let named = attention.rows.len() as u64;
        cost.base += row * (named + u64::from(attention.score.is_some()));
        if attention.keeps_each() {
            cost.token += row;
        }
        if attention.tells(Measure::Density) {
            cost.base += columns * shown * named * NUMBER;
        }
        if observe.norms {
            let attention = spec.layers.iter().filter_map(|layer| layer.attention());
            let outputs: usize = attention.map(|spec| spec.heads * spec.head_dim * spec.head_dim).sum();
            cost.base += outputs as u64 * 4 + row * named;
        }
        // Terms per head and span, and the residual stream of every layer.
        let term = softmax * columns * (8 + NUMBER) + (2 * layers + 2) * width * 8;
        cost.base += term * observe.targets.len() as u64;
        if attention.tokens {
            cost.base += prompt * TEXT;
            cost.token += TEXT;
        }
        if observe.selected {
            let attention = spec.layers.iter().filter_map(|layer| layer.attention());
            let widths = attention.map(|spec| (spec.window, spec.kv_heads * spec.head_dim, spec.heads));
            let (mut keys, mut moment) = (0, 0);
            for (window, width, heads) in widths {
                keys += if window.is_some() { width as u64 * 4 } else { 0 };
                moment = moment.max(heads as u64 * 24 + width as u64 * 8);
            }
            // Keys of windowed layers; one row's weights, and its layer's keys joined; sums by span.
            cost.base += prompt * (keys + moment) + columns * layers * named * (24 + 2 * NUMBER);
            cost.token += keys + moment + columns * layers * 24;
        }
        if let Some(top) = observe.top_keys {
            let heads = if top.mean { layers } else { softmax };
            cost.keys = heads * top.k as u64 * KEY;
            let rows: usize = observe.rows.spans.iter().map(|row| row.len()).sum();
            cost.base += cost.keys * rows as u64;
            if observe.rows.answer.any() {
                cost.token += cost.keys;
            }
        }
        cost
    }

    fn total(&self, tokens: usize) -> u64 {
        self.base.saturating_add(self.token.saturating_mul(tokens as u64))
    }

    /// Reserves memory for `choices` of up to `tokens` tokens each.
    pub fn take(&self, held: &mut Held, choices: usize, tokens: usize) -> Result<(), ApiError> {
        let before = held.bytes();
        let wanted = self.total(tokens).saturating_mul(choices as u64);
        held.add(wanted).map_err(|full| {
            if !full.for_ever() {
                // It would fit once other requests end.
                return full.error("what the request records and replies", None, "record less");
            }
            let left = full.most.saturating_sub(before);
            let of_one = left / (choices as u64).max(1);
            let fit = of_one.saturating_sub(self.base) / self.token.max(1);
            let (field, remedy) = if choices > 1 && self.total(tokens) <= left {
                ("n", format!("ask for {} choices at most", left / self.total(tokens).max(1)))
            } else if fit > 0 {
                let most = "max_completion_tokens (max_tokens for /v1/completions)";
                ("max_tokens", format!("give {most} of at most {fit}"))
            } else if self.keys > 0 {
                let positions = of_one / self.keys.max(1);
                ("palimpsest.top_keys", format!("name rows of at most {positions} positions, or fewer keys"))
            } else if self.kept > of_one / 2 {
                ("palimpsest.evict", "keep fewer keys".to_owned())
            } else {
                ("palimpsest.rows", "name fewer rows, spans or heads".to_owned())
            };
            full.error("what the request records and replies", Some(field), &remedy)
        })
    }
}
