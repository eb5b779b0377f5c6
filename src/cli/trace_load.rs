//! Loads the model of `trace`, sized for its jobs.

use anyhow::Context;
use palimpsest_core::attention::AttentionKernel;
use palimpsest_core::engine::memory_plan::{self, Branches, MemoryRequest, ObservedSpans};
use palimpsest_core::engine::thread::Limits;
use palimpsest_core::engine::{self, DeviceName, Engine, Session};
use palimpsest_core::model::{ModelFiles, OpenModel};
use palimpsest_core::timing;

use crate::models::ModelArgs;
use crate::observe::TraceJob;

pub(super) struct Loading<'a> {
    pub name: &'a str,
    pub args: &'a ModelArgs,
    pub chunk: usize,
    pub allow_longer: bool,
    /// Answers are also scored.
    pub compare: bool,
}

/// Checks everything that needs no weights, then loads the model. `find` locates its files.
pub(super) fn load(
    loading: &Loading<'_>,
    jobs: &[&TraceJob],
    find: impl FnOnce() -> anyhow::Result<ModelFiles>,
    recorder: Option<&timing::Recorder>,
) -> anyhow::Result<Session> {
    let Loading { name, args, chunk, allow_longer, compare } = *loading;
    let devices = args.on.open()?;
    recorder.inspect(|recorder| recorder.wait_for(&devices));
    let most = |of: &dyn Fn(&TraceJob) -> usize| jobs.iter().map(|job| of(job)).max().unwrap_or(0);
    // Generation samples one token beyond the requested ones.
    let asked = most(&TraceJob::room);
    let scores = jobs.iter().any(|job| job.generate > 0);
    let room = asked.saturating_add(usize::from(scores));
    let names = devices.iter().map(DeviceName::of).collect();
    let mut request = MemoryRequest {
        chunk,
        logits: most(&|job| job.observe.logits).max(if compare && scores {
            engine::LOGITS_AT_ONCE
        } else {
            0
        }),
        observed: ObservedSpans {
            rows: most(&|job| job.observed().rows),
            keys: most(&|job| job.observed().keys),
            generated: most(&|job| job.observed().generated),
            selected: jobs.iter().any(|job| job.observe.selected),
            norms: jobs.iter().any(|job| job.observe.norms),
            attributed: jobs.iter().any(|job| job.observed().attributed),
        },
        ..args.request(room, engine::default_dtype(&devices), names)?
    };
    if jobs.iter().any(|job| !job.request.knockouts.is_empty()) {
        request.kernel = AttentionKernel::Products;
    }
    let span = timing::load();
    let model = OpenModel::open(&find()?.paths())?;
    super::check_context(asked, model.spec().max_positions, allow_longer)?;
    if let [job] = jobs {
        job.holes(&model.spec().layer_kinds()).with_context(|| job.place.clone())?;
    }
    let placed = memory_plan::place(name, &model.description(), &request, &devices)?;
    let model = model.keeping(placed.kept).attending_by(args.on.attention_kernel).caching_in(request.cache);
    let engine = Engine::new(model.load_split(placed.devices, request.dtype)?, chunk);
    let cache = engine.decoder().cache(room)?;
    drop(span);
    Ok(Session::new(engine, cache, Limits::of_branches(room, Branches::default())))
}
