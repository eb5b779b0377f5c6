//! The table of docs/models.md: how many GPUs each released model needs at each context.

use candle_core::DType;

use palimpsest_core::engine::DeviceName;
use palimpsest_core::engine::memory_plan::{Branches, MemoryPlan, MemoryRequest};
use palimpsest_core::model::{ModelDescription, ModelError};

/// Usable bytes of an A100-80GB: 80 GB (its driver shows about 85) minus 2 GB for the CUDA context, cuBLAS workspaces and allocator
/// losses.
pub const A100_80GB: u64 = 78_000_000_000;
/// GPU counts.
pub const CARDS: [usize; 3] = [1, 2, 4];
/// Names and sizes of contexts.
pub const CONTEXTS: [(&str, usize); 3] = [("32K", 32_768), ("128K", 131_072), ("150K", 150_000)];

/// Plan of a model on `cards` [`A100_80GB`] in bf16, and whether it fits.
pub fn on_cards(description: &ModelDescription, context: usize, cards: usize) -> (MemoryPlan, bool) {
    let devices = (0..cards).map(DeviceName::Cuda).collect();
    let request = MemoryRequest::new(context, DType::BF16, devices);
    let request = MemoryRequest { branches: Branches::USUAL, ..request };
    let free = vec![Some(A100_80GB); cards];
    let plan = MemoryPlan::new(description, &request, &free);
    let fits = plan.fits(&free) == Some(true);
    (plan, fits)
}

/// The Markdown table: for each released model and context the smallest GPU count, and the memory per GPU.
///
/// # Errors
/// None in a released build: a test reads every config.
pub fn what_fits() -> Result<String, ModelError> {
    let mut text = "| model | parameters | made for |".to_owned();
    CONTEXTS.iter().for_each(|(name, _)| text.push_str(&format!(" {name} |")));
    text.push_str("\n| --- | --- | --- |");
    text.push_str(&" --- |".repeat(CONTEXTS.len()));
    text.push('\n');
    for name in ModelDescription::released_names() {
        let Some(description) = ModelDescription::released(name) else { continue };
        let description = description?;
        let spec = &description.spec;
        text.push_str(&format!(
            "| {name} | {} | {} |",
            in_billions(spec.parameters()),
            indicatif::HumanCount(spec.max_positions as u64)
        ));
        for (_, context) in CONTEXTS {
            let beyond = if context > spec.max_positions { "*" } else { "" };
            let plans = CARDS.map(|cards| (cards, on_cards(&description, context, cards)));
            let cell = match plans.iter().find(|(_, (_, fits))| *fits) {
                Some((cards, (plan, _))) => {
                    format!("{cards}: {}{beyond}", whole_gigabytes(plan.total()))
                }
                None => {
                    format!("none ({}){beyond}", whole_gigabytes(plans[CARDS.len() - 1].1.0.total()))
                }
            };
            text.push_str(&format!(" {cell} |"));
        }
        text.push('\n');
    }
    Ok(text)
}

fn whole_gigabytes(bytes: u64) -> String {
    match bytes {
        0..10_000_000_000 => format!("{:.1} GB", bytes as f64 / 1e9),
        _ => format!("{:.0} GB", bytes as f64 / 1e9),
    }
}

fn in_billions(parameters: u128) -> String {
    match parameters {
        0..1_000_000_000 => format!("{:.0}M", parameters as f64 / 1e6),
        1_000_000_000..100_000_000_000 => format!("{:.1}B", parameters as f64 / 1e9),
        _ => format!("{:.0}B", parameters as f64 / 1e9),
    }
}
