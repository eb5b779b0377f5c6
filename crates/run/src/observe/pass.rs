//! Runs the prompt of a [`TraceJob`] through a model and exports the measurements as tensors.

use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use ndarray::Axis;
use palimpsest_core::attention::{
    LargestKeys, LayerHoles, Masses, NamedTensor, Selected, StoreError, Target, Values, named_tensor,
    write_tensors,
};
use palimpsest_core::engine::{
    Backend, Branch, Event, Generate, Measured, Request, Reuse, Sampling, Session, Task,
};
use palimpsest_core::span::Span;
use palimpsest_core::timing;
use serde_json::{Value, json};

use super::hidden::Hidden;
use super::job::TraceJob;
use super::request::Measure;

/// Metadata label of keys outside all spans.
const NO_SPAN: &str = "(none)";

pub struct Traced {
    pub measured: Measured,
    /// Including generated rows.
    pub masses: Masses,
    pub largest: Option<LargestKeys>,
    pub selected: Option<Selected>,
    pub generated: Vec<u32>,
    /// By knock-out.
    pub hidden: Vec<Hidden>,
    pub seconds: f64,
}

pub struct TraceTensors {
    pub tensors: Vec<NamedTensor>,
    /// Axis names and more, as text or JSON.
    pub metadata: Vec<(&'static str, String)>,
}

impl TraceTensors {
    pub fn write(&self, out: &Path) -> Result<(), StoreError> {
        let _writing = timing::io();
        write_tensors(out, &self.tensors, &self.metadata)
    }
}

impl TraceJob {
    /// Greedy decoding, with one extra token: only the following step reads the last requested one.
    pub fn greedily(&self) -> Generate {
        Generate::new(Sampling::greedy(self.generate + 1), self.stop.clone())
    }

    /// Prefills and generates. `reuse` selects cached tokens of the previous pass. `on_event` returns whether to continue.
    pub fn read(
        &self,
        session: &mut Session,
        reuse: Reuse,
        generate: Generate,
        on_event: &mut dyn FnMut(&Event) -> bool,
    ) -> anyhow::Result<Traced> {
        let place = || self.place.clone();
        let holes = self.holes(&session.layer_kinds()).with_context(place)?;
        let hidden = self.hidden(session).with_context(place)?;
        self.pass(session, (holes, hidden), (reuse, generate), on_event)
    }

    /// [`Self::read`] without the knock-outs.
    pub fn read_plain(
        &self,
        session: &mut Session,
        reuse: Reuse,
        generate: Generate,
        on_event: &mut dyn FnMut(&Event) -> bool,
    ) -> anyhow::Result<Traced> {
        self.pass(session, (LayerHoles::default(), Vec::new()), (reuse, generate), on_event)
    }

    fn pass(
        &self,
        session: &mut Session,
        (holes, hidden): (LayerHoles, Vec<Hidden>),
        (reuse, generate): (Reuse, Generate),
        on_event: &mut dyn FnMut(&Event) -> bool,
    ) -> anyhow::Result<Traced> {
        let place = &self.place;
        let vocabulary = session.engine().decoder().spec().vocab;
        let tokens_of = |target: &Target| [Some(target.token), target.against].into_iter().flatten();
        let asked = self.observe.targets.iter().flat_map(tokens_of);
        if let Some(token) = asked.into_iter().find(|&token| token as usize >= vocabulary) {
            anyhow::bail!(
                "{place}: a target names token {token}, and the model's vocabulary has {vocabulary}"
            );
        }
        let (start, mut seconds) = (Instant::now(), None);
        let task = match self.generate {
            0 => Task::Read,
            _ => Task::Generate(Box::new(generate)),
        };
        let shared = match reuse {
            Reuse::Prefix => 0,
            Reuse::Longest => self.shared(&holes, session.engine()),
        };
        let (prefix, tokens) = self.tokens.split_at(shared);
        let (prefix, tokens, observe) = (prefix.into(), tokens.to_vec(), self.observe.clone());
        let (knockouts, evict) = (holes, self.evict.clone());
        let branch = Branch { tokens, knockouts, evict, observe, tasks: vec![task] };
        let request = Request { prefix, reuse, branches: vec![branch] };
        let device = session.engine().device().clone();
        let mut waited = Ok(());
        let measured = session.answer(request, &mut |event| {
            if matches!(event, Event::Prompt) {
                waited = device.synchronize();
                seconds = Some(start.elapsed().as_secs_f64());
            }
            on_event(event)
        });
        waited?;
        let measured = measured.with_context(|| place.clone())?;
        let mut generated = measured.generated.tokens.clone();
        generated.truncate(self.generate);
        let masses = measured.measurement.finish(generated.len())?;
        let largest = measured.measurement.finish_top_keys(0)?;
        let selected = measured.measurement.finish_selected(&masses)?;
        let seconds = seconds.unwrap_or_default();
        Ok(Traced { measured, masses, largest, selected, generated, hidden, seconds })
    }
}

impl Traced {
    pub fn tensors(&self, job: &TraceJob, dtype: String) -> TraceTensors {
        let Traced { measured, generated, largest, .. } = self;
        let Masses { layers, rows, mass, uniform, sink, first_token, delta, each } = &self.masses;
        let names = |spans: &[Span]| json!(spans.iter().map(|s| &s.label).collect::<Vec<_>>()).to_string();
        let mut metadata = vec![
            ("format", "palimpsest trace 1".to_owned()),
            ("layers", json!(layers).to_string()),
            ("rows", names(rows)),
            ("spans", names(measured.measurement.keys())),
            ("dtype", dtype),
        ];
        let logits_shape = vec![job.observe.logits, measured.logits.dim().1];
        let logits: Vec<f32> = measured.logits.iter().take(logits_shape.iter().product()).copied().collect();
        let mut tensors = vec![("logits", Values::F32(logits), logits_shape)];
        if job.request.wants(Measure::Mass) {
            tensors.push(named_tensor("mass", mass));
        }
        if job.request.wants(Measure::Density) {
            let share = uniform.share.view().insert_axis(Axis(1));
            let density = share.broadcast(mass.dim()).map(|share| mass / &share).unwrap_or_default();
            tensors.push(("density", Values::F32(density.iter().copied().collect()), mass.shape().to_vec()));
        }
        if let Some(norms) = &measured.norms {
            if job.request.wants(Measure::ValueNorm) {
                tensors.push(named_tensor("value_norm", &norms.value_norm));
            }
            if job.request.wants(Measure::OutputNorm) {
                tensors.push(named_tensor("output_norm", &norms.output_norm));
            }
        }
        if let Some(found) = &measured.attributions {
            tensors.push(named_tensor("attribution", &found.heads));
            tensors.push(named_tensor("attribution_other", &found.other));
            let mut labels: Vec<&str> = job.observe.keys.iter().map(|span| &*span.label).collect();
            labels.push(NO_SPAN);
            metadata.push(("attribution_spans", json!(labels).to_string()));
            metadata.push(("parts", json!(found.parts).to_string()));
        }
        if let Some(sink) = sink {
            tensors.push(named_tensor("sink", sink));
        }
        tensors.extend(first_token.iter().map(|mass| named_tensor("first_token", mass)));
        if job.request.wants(Measure::Share) {
            tensors.push(uniform.tensor());
        }
        metadata.push(uniform.metadata());
        if let Some(kept) = &measured.kept {
            tensors.push(named_tensor("kept", &kept.shares));
            metadata.push(("kept_layers", json!(kept.layers).to_string()));
        }
        tensors.extend(self.selected.iter().flat_map(Selected::tensors));
        if let Some(eviction) = &job.evict {
            metadata.push(("evict", eviction.evict.to_string()));
        }
        if let Some(delta) = &delta {
            tensors.extend(delta.tensors());
            metadata.push(delta.metadata());
        }
        if let Some(each) = &each {
            tensors.push(named_tensor("mass_each", &each.mass));
            tensors.extend(each.sink.iter().map(|sink| named_tensor("sink_each", sink)));
            if let Some(delta) = &each.delta {
                tensors.push(named_tensor("delta_signed_each", &delta.signed));
                tensors.push(named_tensor("delta_share_each", &delta.share));
            }
        }
        if let Some(LargestKeys { rows, shape, keys, weights, .. }) = largest {
            metadata.push(("top_positions", json!(rows).to_string()));
            tensors.push(("top_keys", Values::U32(keys.clone()), shape.to_vec()));
            tensors.push(("top_weights", Values::F32(weights.clone()), shape.to_vec()));
        }
        if !self.hidden.is_empty() {
            let knockouts: Vec<&str> = self.hidden.iter().map(|hidden| hidden.knockout.as_str()).collect();
            metadata.push(("knockouts", json!(knockouts).to_string()));
            metadata.push(("hidden", json!(self.hidden_json()).to_string()));
        }
        if job.generate > 0 {
            tensors.push(("generated", Values::U32(generated.clone()), vec![generated.len()]));
        }
        TraceTensors { tensors, metadata }
    }

    /// The knock-outs with their sentences as `text`.
    pub fn hidden_json(&self) -> Vec<Value> {
        let said = |hidden: &Hidden| {
            let mut value = json!(hidden);
            value["text"] = json!(hidden.to_string());
            value
        };
        self.hidden.iter().map(said).collect()
    }

    /// Logits (vocab) of the token after the prompt; empty if none were read.
    pub fn next_logits(&self) -> Vec<f32> {
        let logits = &self.measured.logits;
        logits.rows().into_iter().next_back().map(|row| row.to_vec()).unwrap_or_default()
    }

    pub fn layers(&self) -> usize {
        self.masses.layers.len() + self.masses.delta.as_ref().map_or(0, |delta| delta.layers.len())
    }
}
