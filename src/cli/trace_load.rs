//! Loads the model of `trace`, sized for its jobs.

use std::path::Path;

use anyhow::Context;
use palimpsest_core::attention::AttentionKernel;
use palimpsest_core::engine::memory_plan::{self, Branches, MemoryRequest, ObservedSpans};
use palimpsest_core::engine::thread::Limits;
use palimpsest_core::engine::{self, Backend, DeviceName, Engine, Event, Reuse, Session};
use palimpsest_core::model::{ModelFiles, OpenModel};
use palimpsest_core::timing;

use crate::models::ModelArgs;
use crate::observe::{TraceJob, Traced};

pub(super) struct Tracer {
    session: Session,
}

pub(super) struct Loading<'a> {
    pub name: &'a str,
    pub args: &'a ModelArgs,
    pub chunk: usize,
    pub allow_longer: bool,
}

impl Tracer {
    /// Checks everything that needs no weights, then loads the model. `find` locates its files.
    pub fn load(
        loading: &Loading<'_>,
        jobs: &[&TraceJob],
        find: impl FnOnce() -> anyhow::Result<ModelFiles>,
        recorder: Option<&timing::Recorder>,
    ) -> anyhow::Result<Self> {
        let Loading { name, args, chunk, allow_longer } = *loading;
        let devices = args.on.open()?;
        recorder.inspect(|recorder| recorder.wait_for(&devices));
        let dtype = args.in_dtype.dtype()?.unwrap_or_else(|| engine::default_dtype(&devices));
        let cache = args.in_dtype.cache()?;
        let span = timing::load();
        let most = |of: &dyn Fn(&TraceJob) -> usize| jobs.iter().map(|job| of(job)).max().unwrap_or(0);
        let room = most(&TraceJob::room);
        let model = OpenModel::open(&find()?.paths())?;
        super::check_context(room, model.spec().max_positions, allow_longer)?;
        let kinds = model.spec().layer_kinds();
        if let [job] = jobs {
            job.holes(&kinds).with_context(|| job.place.clone())?;
        }
        // Generation samples one token beyond the requested ones.
        let room = room.saturating_add(usize::from(jobs.iter().any(|job| job.generate > 0)));
        let hides = jobs.iter().any(|job| !job.request.knockouts.is_empty());
        let request = MemoryRequest {
            context: room,
            chunk,
            logits: most(&|job| job.observe.logits),
            dtype,
            cache,
            kernel: if hides { AttentionKernel::Products } else { args.on.attention_kernel },
            devices: devices.iter().map(DeviceName::of).collect(),
            branches: Branches::default(),
            observed: ObservedSpans {
                rows: most(&|job| job.observed().rows),
                keys: most(&|job| job.observed().keys),
                generated: most(&|job| job.observed().generated),
            },
            kept: args.weights.into(),
            beside: 0,
        };
        let placed = memory_plan::place(name, &model.description(), &request, &devices)?;
        let model = model.keeping(placed.kept).attending_by(args.on.attention_kernel).caching_in(cache);
        let engine = Engine::new(model.load_split(placed.devices, dtype)?, chunk);
        let cache = engine.decoder().cache(room)?;
        let session = Session::new(engine, cache, Limits::of_branches(room, Branches::default()));
        drop(span);
        Ok(Tracer { session })
    }

    /// Prefills and generates. With `reuse`, keeps the common prefix with the previous pass.
    pub fn trace(
        &mut self,
        job: &TraceJob,
        reuse: bool,
        prefilled: &mut dyn FnMut(usize),
    ) -> anyhow::Result<Traced> {
        let reuse = if reuse { Reuse::Longest } else { Reuse::default() };
        job.read(&mut self.session, reuse, job.greedily(), &mut |event| {
            if let Event::Prefilled(done) = event {
                prefilled(*done);
            }
            true
        })
    }

    pub fn write(&self, job: &TraceJob, traced: &Traced, out: &Path) -> anyhow::Result<()> {
        Ok(traced.tensors(job, self.session.dtype()).write(out)?)
    }
}
