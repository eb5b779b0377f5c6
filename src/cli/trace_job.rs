//! One pass of `trace`: a prompt of tokens with named spans, what is measured of it, and the file of the measurements.
//!
//! Made from a tokens file (`trace`), a text (`trace_text`) or a line of a file of jobs (`trace_jobs`). Everything that can be refused
//! without a model is refused when a [`TraceJob`] is made.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, ensure};
use candle_core::DType;
use palimpsest_core::attention::{
    AttentionKernel, EachMasses, Knockout, KnockoutError, LargestKeys, LayerHoles, LayerKind, Masses, Target,
    Values, write_tensors,
};
use palimpsest_core::engine::memory_plan::{self, Branches, MemoryRequest, ObservedSpans};
use palimpsest_core::engine::thread::Limits;
use palimpsest_core::engine::{
    self, Branch, DeviceName, Engine, Event, Generate, Measured, Observe, Request, Reuse, Rows, Sampling,
    Session, Task, TopRequest,
};
use palimpsest_core::model::{ModelFiles, OpenModel};
use palimpsest_core::span::Span;
use palimpsest_core::timing;
use serde_json::json;

use crate::models::ModelArgs;

/// Label in the metadata of the keys that are in no span.
const NO_SPAN: &str = "(none)";

const MEASURES: [&str; 4] = ["mass", "share", "value_norm", "output_norm"];

/// What is asked of a prompt, as it was given.
pub(super) struct Asked {
    /// The file, or the job: what errors begin with.
    pub place: String,
    pub tokens: Vec<u32>,
    /// The spans on the axis of the file.
    pub keys: Vec<Span>,
    /// Spans that rows and knock-outs may name.
    pub names: Vec<Span>,
    pub rows: Vec<String>,
    pub logits: usize,
    pub knockouts: Vec<Knockout>,
    pub reach: Reach,
    pub top_keys: usize,
    pub measures: Option<Vec<String>>,
    pub targets: Vec<Target>,
    /// Tokens to generate.
    pub generate: usize,
    /// Tokens that end what is generated; none where all of it is wanted whatever comes.
    pub stop: Vec<u32>,
}

/// The rows that a knock-out blocks beside those that it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// None, but for generated ones behind rows at the prompt's end.
    Named,
    /// All behind the first one that it names, as knock-outs that are written `ROWS->KEYS` do.
    Behind,
}

/// A prompt with all that is asked of it, checked.
pub(super) struct TraceJob {
    pub place: String,
    pub tokens: Vec<u32>,
    observe: Observe,
    names: Vec<Span>,
    rows: usize,
    measures: Option<Vec<String>>,
    knockouts: Vec<Knockout>,
    reach: Reach,
    generate: usize,
    stop: Vec<u32>,
}

impl TraceJob {
    /// Checks all but what only a model can tell.
    pub fn new(asked: Asked) -> anyhow::Result<Self> {
        let Asked { place, tokens, keys, names, rows: row_names, logits, knockouts, reach, .. } = asked;
        let Asked { top_keys, measures, targets, generate, stop, .. } = asked;
        ensure!(!tokens.is_empty(), "{place}: `tokens` is empty; give at least one token");
        let n = tokens.len();
        let rows = Rows::named(&row_names, &names, n).with_context(|| place.clone())?;
        let named = row_names.iter().chain(knockouts.iter().map(|knockout| &knockout.rows));
        if let Some(row) = named.into_iter().find(|row| ["answer", "each"].contains(&row.as_str())) {
            ensure!(
                generate > 0,
                "{place}: row `{row}` is of generated tokens, and none are asked for; add --generate N, or leave the row out"
            );
        }
        ensure!(logits <= n, "{place}: `logits` asks for {logits} positions of {n} tokens");
        if let Some(unknown) = measures.iter().flatten().find(|name| !MEASURES.contains(&name.as_str())) {
            anyhow::bail!("{place}: `measures` names `{unknown}`, and knows {}", MEASURES.join(", "));
        }
        let norms = measures.iter().flatten().any(|name| name.ends_with("_norm"));
        ensure!(
            !(norms && rows.answer.any()),
            "{place}: value_norm and output_norm are of the prompt's rows; leave the rows `answer` and `each` out"
        );
        ensure!(top_keys <= n, "{place}: `top_keys` asks for {top_keys} keys of {n}");
        let observe = Observe {
            rows,
            keys,
            top_keys: (top_keys > 0).then_some(TopRequest { k: top_keys, mean: false }),
            norms,
            targets,
            logits,
            ..Observe::default()
        };
        let rows = row_names.len();
        Ok(TraceJob { place, tokens, observe, names, rows, measures, knockouts, reach, generate, stop })
    }

    /// True if the file has this measure.
    fn wants(&self, name: &str) -> bool {
        match &self.measures {
            Some(named) => named.iter().any(|other| other == name),
            None => ["mass", "share"].contains(&name),
        }
    }

    /// Tokens of prompt and answer.
    pub fn room(&self) -> usize {
        self.tokens.len().saturating_add(self.generate)
    }

    /// The key spans.
    pub fn keys(&self) -> &[Span] {
        &self.observe.keys
    }

    /// True if something is generated.
    pub fn generates(&self) -> bool {
        self.generate > 0
    }

    /// The targets whose logits are attributed.
    pub fn targets(&self) -> &[Target] {
        &self.observe.targets
    }

    fn observed(&self) -> ObservedSpans {
        let each = if self.observe.rows.answer.each { self.generate } else { 0 };
        ObservedSpans {
            rows: self.rows.saturating_add(each),
            keys: self.observe.keys.len(),
            generated: self.generate,
        }
    }

    /// Tokens at the beginning that the cache is to keep for the next pass where keys are hidden: those before the first row that is
    /// blocked or measured. Where none are hidden, all are kept anyhow.
    fn shared(&self, holes: &LayerHoles, engine: &Engine) -> usize {
        let Some(blocked) = holes.first_row() else { return 0 };
        let Observe { rows, targets, logits, .. } = &self.observe;
        let measured = rows.spans.iter().map(|row| row.start);
        let first = measured.chain(targets.iter().map(|target| target.position)).chain([blocked]).min();
        // A token by itself would be summed in the order of decoding.
        let most = self.tokens.len().saturating_sub((*logits).max(2));
        match engine.border(first.unwrap_or(0).min(most)) {
            1 => 0,
            shared => shared,
        }
    }

    /// What its knock-outs hide in a model with these layers.
    ///
    /// # Errors
    /// [`KnockoutError`].
    pub fn holes(&self, kinds: &[LayerKind]) -> Result<LayerHoles, KnockoutError> {
        let n = self.tokens.len();
        match self.reach {
            Reach::Named => LayerHoles::exact(&self.knockouts, &self.names, n, kinds),
            Reach::Behind => {
                let position = n.saturating_sub(1)..n;
                let positions = ["last", "answer", "each"].map(|name| Span::new(name, position.clone()));
                let names: Vec<Span> = self.names.iter().cloned().chain(positions).collect();
                // The rows of generated tokens are all that there are behind the prompt.
                let whole = |knockout: &Knockout| match ["answer", "each"].contains(&knockout.rows.as_str()) {
                    true => Knockout { only: false, ..knockout.clone() },
                    false => knockout.clone(),
                };
                let knockouts: Vec<Knockout> = self.knockouts.iter().map(whole).collect();
                LayerHoles::new(&knockouts, &names, n, kinds)
            }
        }
    }
}

/// A loaded model that passes are made with.
pub(super) struct Tracer {
    pub session: Session,
    kinds: Vec<LayerKind>,
    dtype: DType,
}

/// The measurements of a pass.
pub(super) struct Traced {
    pub measured: Measured,
    pub masses: Masses,
    pub largest: Option<LargestKeys>,
    pub generated: Vec<u32>,
    /// Seconds of the prompt.
    pub seconds: f64,
}

/// Flags of how a model is loaded.
pub(super) struct Loading<'a> {
    pub name: &'a str,
    pub args: &'a ModelArgs,
    pub chunk: usize,
    pub allow_longer: bool,
}

impl Tracer {
    /// Loads a model with room for each of the jobs, after whatever can be refused before that. `find` finds the model's files.
    pub fn load(
        loading: &Loading<'_>,
        jobs: &[&TraceJob],
        find: impl FnOnce() -> anyhow::Result<ModelFiles>,
        recorder: Option<&timing::Recorder>,
    ) -> anyhow::Result<Self> {
        let Loading { name, args, chunk, allow_longer } = *loading;
        let devices = args.on.open()?;
        recorder.inspect(|recorder| recorder.wait_for(&devices));
        let dtype = args.dtype()?.unwrap_or_else(|| engine::default_dtype(&devices));
        let span = timing::load();
        let most = |of: &dyn Fn(&TraceJob) -> usize| jobs.iter().map(|job| of(job)).max().unwrap_or(0);
        // There must be room for what is generated, too.
        let room = most(&TraceJob::room);
        let model = OpenModel::open(&find()?.paths())?;
        super::check_context(room, model.spec().max_positions, allow_longer)?;
        let kinds = model.spec().layer_kinds();
        if let [job] = jobs {
            job.holes(&kinds).with_context(|| job.place.clone())?;
        }
        // One token more is chosen than is asked for.
        let room = room.saturating_add(usize::from(jobs.iter().any(|job| job.generates())));
        let hides = jobs.iter().any(|job| !job.knockouts.is_empty());
        let request = MemoryRequest {
            context: room,
            chunk,
            logits: most(&|job| job.observe.logits),
            dtype,
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
        let model = model.keeping(placed.kept).attending_by(args.on.attention_kernel);
        let engine = Engine::new(model.load_split(placed.devices, dtype)?, chunk);
        let cache = engine.decoder().cache(room)?;
        let session = Session::new(engine, cache, Limits::of_branches(room, Branches::default()));
        drop(span);
        Ok(Tracer { session, kinds, dtype })
    }

    /// Reads the prompt, and generates. With `reuse` the pass goes on from what the one before has in common with it.
    pub fn trace(
        &mut self,
        job: &TraceJob,
        reuse: bool,
        prefilled: &mut dyn FnMut(usize),
    ) -> anyhow::Result<Traced> {
        let (place, observe, generate) = (&job.place, &job.observe, job.generate);
        let holes = job.holes(&self.kinds).with_context(|| place.clone())?;
        let vocabulary = self.session.engine().decoder().spec().vocab;
        let tokens_of = |target: &Target| [Some(target.token), target.against].into_iter().flatten();
        if let Some(token) =
            observe.targets.iter().flat_map(tokens_of).find(|&token| token as usize >= vocabulary)
        {
            anyhow::bail!(
                "{place}: a target names token {token}, and the model's vocabulary has {vocabulary}"
            );
        }
        let (start, mut seconds) = (Instant::now(), None);
        // The last token chosen is one too many: it is chosen for the sake of the step before it, which reads the last one asked for.
        let task = match generate {
            0 => Task::Read,
            tokens => Task::Generate(Box::new(Generate::new(Sampling::greedy(tokens + 1), job.stop.clone()))),
        };
        let shared = if reuse { job.shared(&holes, self.session.engine()) } else { 0 };
        let (prefix, tokens) = job.tokens.split_at(shared);
        let (prefix, tokens) = (prefix.into(), tokens.to_vec());
        let branch = Branch { tokens, knockouts: holes, observe: observe.clone(), tasks: vec![task] };
        let reuse = if reuse { Reuse::Longest } else { Reuse::default() };
        let request = Request { prefix, reuse, branches: vec![branch] };
        let device = self.session.engine().device().clone();
        let mut waited = Ok(());
        let measured = self.session.answer(request, &mut |event| {
            match event {
                Event::Prefilled(done) => prefilled(*done),
                Event::Prompt => {
                    waited = device.synchronize();
                    seconds = Some(start.elapsed().as_secs_f64());
                }
                _ => {}
            }
            true
        });
        waited?;
        let measured = measured.with_context(|| place.clone())?;
        let mut generated = measured.generated.tokens.clone();
        generated.truncate(generate);
        let masses = measured.measurement.finish(generated.len())?;
        // Of the prompt's rows alone.
        let largest = measured.measurement.finish_top_keys(0)?;
        Ok(Traced { measured, masses, largest, generated, seconds: seconds.unwrap_or_default() })
    }

    /// Writes the measurements of a pass.
    pub fn write(&self, job: &TraceJob, traced: &Traced, out: &Path) -> anyhow::Result<()> {
        let Traced { measured, generated, largest, .. } = traced;
        let Masses { layers, rows, mass, uniform, sink, delta, each } = &traced.masses;
        let names = |spans: &[Span]| json!(spans.iter().map(|s| &s.label).collect::<Vec<_>>()).to_string();
        let mut metadata = vec![
            ("format", "palimpsest trace 1".to_owned()),
            ("layers", json!(layers).to_string()),
            ("rows", names(rows)),
            ("spans", names(measured.measurement.keys())),
            ("dtype", format!("{:?}", self.dtype).to_lowercase()),
        ];
        let logits_shape = vec![job.observe.logits, measured.logits.dim().1];
        let logits: Vec<f32> = measured.logits.iter().take(logits_shape.iter().product()).copied().collect();
        let mut tensors = vec![("logits", Values::F32(logits), logits_shape)];
        if job.wants("mass") {
            tensors.push(("mass", Values::F32(mass.iter().copied().collect()), mass.shape().to_vec()));
        }
        if let Some(norms) = &measured.norms {
            for (name, values) in [("value_norm", &norms.value_norm), ("output_norm", &norms.output_norm)] {
                if job.wants(name) {
                    let shape = values.shape().to_vec();
                    tensors.push((name, Values::F32(values.iter().copied().collect()), shape));
                }
            }
        }
        if let Some(found) = &measured.attributions {
            for (name, values, shape) in [
                ("attribution", found.heads.iter().copied().collect(), found.heads.shape().to_vec()),
                ("attribution_other", found.other.iter().copied().collect(), found.other.shape().to_vec()),
            ] {
                tensors.push((name, Values::F32(values), shape));
            }
            let mut labels: Vec<&str> = job.keys().iter().map(|span| &*span.label).collect();
            labels.push(NO_SPAN);
            metadata.push(("attribution_spans", json!(labels).to_string()));
            metadata.push(("parts", json!(found.parts).to_string()));
        }
        if let Some(sink) = sink {
            tensors.push(("sink", Values::F32(sink.iter().copied().collect()), sink.shape().to_vec()));
        }
        if job.wants("share") {
            tensors.push(uniform.tensor());
        }
        metadata.push(uniform.metadata());
        if let Some(delta) = &delta {
            tensors.extend(delta.tensors());
            metadata.push(delta.metadata());
        }
        if let Some(each) = &each {
            tensors.extend(each_tensors(each));
        }
        if let Some(LargestKeys { rows, shape, keys, weights, .. }) = largest {
            metadata.push(("top_positions", json!(rows).to_string()));
            tensors.push(("top_keys", Values::U32(keys.clone()), shape.to_vec()));
            tensors.push(("top_weights", Values::F32(weights.clone()), shape.to_vec()));
        }
        if !job.knockouts.is_empty() {
            let knockouts = job.knockouts.iter().map(ToString::to_string).collect::<Vec<_>>();
            metadata.push(("knockouts", json!(knockouts).to_string()));
        }
        if job.generates() {
            tensors.push(("generated", Values::U32(generated.clone()), vec![generated.len()]));
        }
        let _writing = timing::io();
        write_tensors(out, &tensors, &metadata)?;
        Ok(())
    }
}

impl Traced {
    /// Layers that were measured.
    pub fn layers(&self) -> usize {
        self.masses.layers.len() + self.masses.delta.as_ref().map_or(0, |delta| delta.layers.len())
    }
}

fn each_tensors(each: &EachMasses) -> Vec<(&'static str, Values, Vec<usize>)> {
    let mut tensors =
        vec![("mass_each", Values::F32(each.mass.iter().copied().collect()), each.mass.shape().to_vec())];
    if let Some(sink) = &each.sink {
        tensors.push(("sink_each", Values::F32(sink.iter().copied().collect()), sink.shape().to_vec()));
    }
    if let Some(delta) = &each.delta {
        for (name, values) in [("delta_signed_each", &delta.signed), ("delta_share_each", &delta.share)] {
            tensors.push((name, Values::F32(values.iter().copied().collect()), values.shape().to_vec()));
        }
    }
    tensors
}
