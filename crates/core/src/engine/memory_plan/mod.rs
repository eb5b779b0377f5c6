//! Plans the memory of a model and the device of each layer before loading.
//!
//! Computed from the decoder's description only. Loading refuses a plan that does not fit and suggests the cheapest changes that would;
//! `palimpsest model plan` prints it.

use std::collections::BTreeMap;

use candle_core::{DType, Device};

use super::DEFAULT_CHUNK;
use super::device::DeviceName;
use crate::model::{Kept, ModelDescription, PackedBytes, branch_bytes, cache_bytes};

mod arithmetic;
mod memory;
mod request;
mod serving;
mod split;

use arithmetic::n;
pub use memory::{available_bytes, peak_resident_bytes, resident_bytes, total_bytes};
pub use request::{Branches, MemoryRequest, ObservedSpans, USUAL_ANSWER};
pub use serving::{ServerMemory, Serving, TOKENISING};
pub use split::{Parts, split};

/// Bytes needed on one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// The device.
    pub device: DeviceName,
    /// Layers on the device.
    pub layers: usize,
    /// Weights, in every stored form.
    pub weights: u64,
    /// KV cache and recurrent states of context and branches, and copies of what evictions keep.
    pub cache: u64,
    /// Activations of one chunk.
    pub activations: u64,
    /// Scratch of the attention observer ([`ObservedSpans`]).
    pub observer: u64,
    /// The process (code, tokeniser, allocator) and a server's requests.
    pub process: u64,
}

impl Share {
    /// Sum of all fields.
    pub fn total(&self) -> u64 {
        self.weights + self.cache + self.activations + self.observer + self.process
    }
}

/// Bytes needed, per device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPlan {
    /// One per requested device, in order.
    pub shares: Vec<Share>,
    /// Device index of each layer.
    pub places: Vec<usize>,
    /// Bytes of memory-mapped files during loading. The OS counts them for the process but can reclaim them, so they need not be free.
    pub mapped: u64,
    /// Storage of quantised weights on the CPU in f32 or bf16; `None` without such weights.
    pub kept: Option<Kept>,
}

/// CPU process overhead: code, tables, allocator slack, threads. Measured, rounded up.
const PROCESS: u64 = 32 << 20;

impl MemoryPlan {
    /// Splits layers by free bytes per device (`None`: unknown). Quantised weights are also kept dequantised unless only packed ones fit.
    pub fn new(description: &ModelDescription, request: &MemoryRequest, free: &[Option<u64>]) -> Self {
        let dense = Self::keeping(description, request, free, request.kept.unwrap_or_default());
        if request.kept.is_some() || dense.kept.is_none() || dense.fits(free) != Some(false) {
            return dense;
        }
        let quantised = Self::keeping(description, request, free, Kept::Quantised);
        if quantised.fits(free) == Some(false) { dense } else { quantised }
    }

    fn keeping(
        description: &ModelDescription,
        request: &MemoryRequest,
        free: &[Option<u64>],
        kept: Kept,
    ) -> Self {
        let spec = &description.spec;
        let formats = request.formats();
        let size = formats.dtype.size_in_bytes() as u64;
        let chunk = request.chunk.min(request.context.max(1));
        // Decode on the CPU reads packed weights.
        let on_cpu = request.on_cpu();
        let packed = description.packed.as_ref().filter(|_| on_cpu && formats.activations == DType::F32);
        let cached = if request.whole_windows { &spec.without_windows() } else { spec };
        let cache = |i: usize| {
            let mixer = &cached.layers[i].mixer;
            let bytes = cache_bytes(mixer, request.context, chunk, &formats).and_then(|trunk| {
                let branch = branch_bytes(mixer, request.context, request.branches.tokens, &formats)?;
                let kept = match spec.layers[i].attention() {
                    Some(a) if a.window.is_none() => {
                        cache_bytes(mixer, request.kept_keys(), chunk, &formats)?
                    }
                    _ => 0,
                };
                trunk.checked_add(kept)?.checked_add(branch.checked_mul(request.branches.count)?)
            });
            // Overflow: larger than any machine, yet safe to add up.
            bytes.map_or(u64::MAX >> 16, n)
        };
        let packed_layer = |i: usize| packed.and_then(|p| p.layers.get(i)).copied().unwrap_or_default();
        // Packed weights are stored besides the dequantised ones, or instead of them.
        let with_packed = |dense: u64, of: PackedBytes| match kept {
            Kept::Dense => dense + of.packed,
            Kept::Quantised => dense.saturating_sub(of.dense / 4 * size) + of.packed,
        };
        // f32 values, plus a bf16 copy for half-precision products.
        let each = if formats.half_products() { 6 } else { 4 };
        let scratch = |of: PackedBytes| if kept == Kept::Quantised { of.scratch / 4 * each } else { 0 };
        let weights =
            |i: usize| with_packed(arithmetic::layer_weights(spec, &spec.layers[i], size), packed_layer(i));
        let embedding = n(spec.vocab) * n(spec.hidden) * size;
        let layer_embeddings = u64::try_from(spec.layer_embeddings()).unwrap_or(u64::MAX >> 16) * size;
        let packed_head = packed.map_or_else(PackedBytes::default, |p| p.head);
        // A tied head shares its dequantised weights with the embedding.
        let head_values = if spec.tied { packed_head.packed } else { with_packed(embedding, packed_head) };
        let head = head_values + n(spec.hidden) * 4;
        let parts = Parts {
            layers: (0..spec.layers.len()).map(|i| weights(i) + cache(i)).collect(),
            together: spec.sharing_keys(),
            first: embedding + layer_embeddings,
            last: head,
        };
        let places = split(&parts, &in_shares(&request.devices, free));
        let (first, last) = (places.first().copied(), places.last().copied());
        let l = n(chunk);
        let shares = request.devices.iter().enumerate().map(|(d, &device)| {
            let own = || (0..spec.layers.len()).filter(|&i| places[i] == d);
            let widest = |f: &dyn Fn(usize) -> u64| own().map(f).max().unwrap_or(0);
            let activations = |i: usize| {
                arithmetic::layer_activations(spec, &spec.layers[i], request, l, device)
                    + scratch(packed_layer(i))
            };
            // Layers run one at a time: the observer's scratch adds to that layer's activations.
            let measured = |i: usize| {
                activations(i) + arithmetic::observer_moment(spec, &spec.layers[i], request, device)
            };
            let mut share = Share {
                device,
                layers: own().count(),
                weights: own().map(weights).sum(),
                cache: own().map(cache).sum(),
                activations: widest(&activations),
                observer: own().map(|i| arithmetic::observer_sums(&spec.layers[i], request)).sum::<u64>()
                    + own().map(|i| arithmetic::observer_history(&spec.layers[i], request)).sum::<u64>()
                    + own().map(|i| arithmetic::observer_selected(&spec.layers[i], request)).sum::<u64>()
                    + own().map(|i| arithmetic::observer_grams(&spec.layers[i], request)).sum::<u64>()
                    + (widest(&measured) - widest(&activations)),
                process: if device == DeviceName::Cpu && d == 0 { PROCESS + request.beside } else { 0 },
            };
            if Some(d) == first {
                share.weights += embedding + layer_embeddings;
                // Rows, projection and sum of all layers' parts.
                let all = n(spec.layer_inputs.unwrap_or(0)) * n(spec.layers.len());
                share.activations += 3 * l * all * formats.activations.size_in_bytes() as u64;
            }
            if Some(d) == last {
                share.weights += head;
                // A tied head on another device needs a copy of the embedding.
                let same = first.is_some_and(|first| request.devices[first] == device);
                if spec.tied && !same {
                    share.weights += embedding;
                }
                // Logits, row sizes and the sums' input, in f32.
                share.activations += 3 * n(request.logits.max(1)) * n(spec.vocab) * 4;
                if !spec.tied {
                    share.activations += scratch(packed_head);
                }
            }
            share
        });
        let shares = shares.collect();
        let kept = packed.is_some().then_some(kept);
        MemoryPlan { shares, places, mapped: if on_cpu { description.file_bytes } else { 0 }, kept }
    }

    fn sum(&self, of: impl Fn(&Share) -> u64) -> u64 {
        self.shares.iter().map(of).sum()
    }

    /// Weight bytes on all devices.
    pub fn weights(&self) -> u64 {
        self.sum(|s| s.weights)
    }

    /// Cache bytes on all devices.
    pub fn cache(&self) -> u64 {
        self.sum(|s| s.cache)
    }

    /// Activation bytes on all devices.
    pub fn activations(&self) -> u64 {
        self.sum(|s| s.activations)
    }

    /// Observer bytes on all devices.
    pub fn observer(&self) -> u64 {
        self.sum(|s| s.observer)
    }

    /// Total bytes on all devices.
    pub fn total(&self) -> u64 {
        self.sum(Share::total)
    }

    /// Peak resident memory on the CPU: at the end of loading, files still mapped, or at the end of prefill.
    pub fn peak_resident(&self) -> u64 {
        let loading = self.sum(|s| s.weights + s.process) + self.mapped;
        self.total().max(loading)
    }

    /// True if every device has enough free memory; `None` if unknown.
    pub fn fits(&self, free: &[Option<u64>]) -> Option<bool> {
        let mut needed: BTreeMap<DeviceName, (u64, Option<u64>)> = BTreeMap::new();
        for (share, &free) in self.shares.iter().zip(free) {
            needed.entry(share.device).or_insert((0, free)).0 += share.total();
        }
        let fits: Vec<Option<bool>> =
            needed.values().map(|(needed, free)| free.map(|free| *needed <= free)).collect();
        // One device that is too small decides, even if others are unknown.
        match fits.contains(&Some(false)) {
            true => Some(false),
            false => fits.into_iter().collect::<Option<Vec<_>>>().map(|_| true),
        }
    }
}

/// Free bytes per entry; a device listed several times is divided between its entries.
fn in_shares(devices: &[DeviceName], free: &[Option<u64>]) -> Vec<Option<u64>> {
    let times = |device: &DeviceName| n(devices.iter().filter(|d| *d == device).count()).max(1);
    devices
        .iter()
        .enumerate()
        .map(|(i, device)| free.get(i).copied().flatten().map(|free| free / times(device)))
        .collect()
}

/// A request exceeds the free memory, with remedies.
#[derive(Debug, thiserror::Error)]
#[error("{needs} are free on {devices}. What would fit: {remedies}")]
pub struct DoesNotFit {
    bytes: u64,
    needs: String,
    devices: String,
    remedies: String,
}

impl DoesNotFit {
    /// Rewrites the remedies with a server's flags.
    pub(super) fn of_server(mut self: Box<Self>, memory: Option<u64>) -> Box<Self> {
        self.remedies = self.remedies.replace("--batch-size 1", "a smaller --parallel and --cache-tokens");
        if let Some(memory) = memory {
            self.remedies = format!("--memory {}; or {}", mebibytes(self.bytes), self.remedies);
            self.devices = format!("{} within --memory {}", self.devices, mebibytes(memory));
        }
        self
    }
}

/// Device of each layer, and storage of quantised weights.
#[derive(Debug, Clone)]
pub struct Placement {
    /// Device of each layer.
    pub devices: Vec<Device>,
    /// Storage of quantised weights on the CPU in f32 or bf16.
    pub kept: Kept,
}

/// Plans with the currently free memory; fails if the model does not fit.
pub fn place(
    model: &str,
    description: &ModelDescription,
    request: &MemoryRequest,
    devices: &[Device],
) -> Result<Placement, Box<DoesNotFit>> {
    let free: Vec<Option<u64>> = devices.iter().map(available_bytes).collect();
    place_within(model, description, request, devices, &free)
}

/// [`place`] with given free bytes per device.
pub fn place_within(
    model: &str,
    description: &ModelDescription,
    request: &MemoryRequest,
    devices: &[Device],
    free: &[Option<u64>],
) -> Result<Placement, Box<DoesNotFit>> {
    let plan = check(model, description, request, free)?;
    if let Some(kept) = plan.kept {
        tracing::info!("{model}: {}", in_words(kept));
    }
    Ok(Placement {
        devices: plan.places.iter().filter_map(|&place| devices.get(place).cloned()).collect(),
        kept: plan.kept.unwrap_or_default(),
    })
}

/// Describes the storage of quantised weights, in lower case.
pub fn in_words(kept: Kept) -> &'static str {
    match kept {
        Kept::Dense => {
            "quantised weights are dequantised once, for the prefill, and kept packed for decoding"
        }
        Kept::Quantised => {
            "quantised weights are kept packed alone, and each is dequantised for every prefill chunk (the same numbers, slower)"
        }
    }
}

/// Fails if a request exceeds the free bytes of its devices.
pub fn check(
    model: &str,
    description: &ModelDescription,
    request: &MemoryRequest,
    free: &[Option<u64>],
) -> Result<MemoryPlan, Box<DoesNotFit>> {
    let plan = MemoryPlan::new(description, request, free);
    if plan.fits(free) != Some(false) {
        return Ok(plan);
    }
    // Count repeated devices once.
    let named: BTreeMap<DeviceName, Option<u64>> =
        request.devices.iter().copied().zip(free.iter().copied()).collect();
    let names: Vec<String> = request.devices.iter().map(ToString::to_string).collect();
    let (total, weights, cache) = (plan.total(), plan.weights(), plan.cache());
    let dtype = format!("{:?}", request.dtype).to_lowercase();
    let needs = format!(
        "{model} at a context of {} tokens in {dtype} needs {} (weights {}, cache {}, the rest {}), and {}",
        request.context,
        gigabytes(total),
        gigabytes(weights),
        gigabytes(cache),
        gigabytes(total - weights - cache),
        gigabytes(named.values().flatten().sum())
    );
    let remedies = remedies(description, request, free, total);
    Err(Box::new(DoesNotFit { bytes: total, needs, devices: names.join(", "), remedies }))
}

/// Up to three changes that fit, cheapest first.
fn remedies(
    description: &ModelDescription,
    request: &MemoryRequest,
    free: &[Option<u64>],
    needed: u64,
) -> String {
    let fits = |request: &MemoryRequest| MemoryPlan::new(description, request, free).fits(free) == Some(true);
    let with = |change: &dyn Fn(&mut MemoryRequest)| {
        let mut other = request.clone();
        change(&mut other);
        other
    };
    let mut found = Vec::new();
    if request.chunk > 128 && fits(&with(&|w| w.chunk = 128)) {
        found.push("--chunk 128".to_owned());
    }
    if request.branches.count > 0 && fits(&with(&|w| w.branches = Branches::default())) {
        found.push("--batch-size 1".to_owned());
    }
    if request.kept == Some(Kept::Dense) && fits(&with(&|w| w.kept = Some(Kept::Quantised))) {
        found.push("--weights quantised".to_owned());
    }
    let wide = request.on_cpu() && request.formats().cache == DType::F32;
    if wide && request.formats().activations == DType::F32 && fits(&with(&|w| w.cache = Some(DType::BF16))) {
        found.push("--cache-dtype bf16".to_owned());
    }
    if request.dtype == DType::F32 && fits(&with(&|w| (w.dtype, w.cache) = (DType::BF16, None))) {
        found.push("--dtype bf16".to_owned());
    }
    let (mut low, mut high) = (0, request.context);
    while low + 1 < high {
        let middle = low.midpoint(high);
        if fits(&with(&|w| w.context = middle)) { low = middle } else { high = middle }
    }
    if low >= DEFAULT_CHUNK {
        found.push(format!("--context {low}"));
    }
    found.push(format!("devices with {} free, or a smaller model", gigabytes(needed)));
    found.truncate(3);
    found.join("; or ")
}

/// Formats bytes for people.
pub fn gigabytes(bytes: u64) -> String {
    match bytes {
        0..100_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}

/// Formats bytes for flags, rounded up.
pub fn mebibytes(bytes: u64) -> String {
    format!("{}MiB", bytes.div_ceil(1 << 20))
}

#[cfg(test)]
mod tests;
