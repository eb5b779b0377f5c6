//! A model for Python, used by one caller at a time.

use anyhow::{Context, ensure};
use palimpsest::heads::plant::{self, Needle};
use palimpsest::heads::probing::{ProbingOptions, probe};
use palimpsest::models::{self, ModelArgs, Opened};
use palimpsest::observe::causes::{Controls, SpanCauseOptions, Way, measure};
use palimpsest::observe::{ObserveRequest, TextTools, TraceJob, TraceTensors};
use palimpsest_core::ablate::Said;
use palimpsest_core::engine::memory_plan::{Branches, ObservedSpans};
use palimpsest_core::engine::{
    Backend, ContextLength, Event, Generate, LOGITS_AT_ONCE, LocalModel, LocalOptions, ModelText, Reuse,
    Sampling,
};
use palimpsest_core::evict::Evict;
use pyo3::prelude::*;
use serde::Deserialize;
use serde_json::Value;

use super::arrays::{self, Arrays};
use super::errors::raised;
use super::prompt::{PLACE, Prompt};
use super::work::{self, Queue, Watch};

/// Spans planned for in memory.
const OBSERVED: ObservedSpans =
    ObservedSpans { rows: 16, keys: 256, generated: 256, selected: false, norms: false, attributed: false };

/// Label of the question: causes are measured of the spans before it, keys evicted there.
const QUESTION: &str = "query";

/// Token limits of needle prompts and answers, as in `palimpsest heads`.
const NEEDLE_CONTEXT: usize = 2048;
const NEEDLE_ANSWER: usize = 48;

/// An opened model.
#[pyclass(module = "palimpsest._native", frozen)]
pub struct Model {
    queue: Queue<LocalModel>,
    text: ModelText,
    digest: String,
    dtype: String,
    device: String,
    layers: usize,
    heads: usize,
    vocabulary: usize,
    reuse: Reuse,
    /// Process id at opening: a fork lacks the compute threads.
    process: u32,
}

/// The flags by which the command opens a model.
#[derive(clap::Parser)]
struct Flags {
    #[command(flatten)]
    loaded: ModelArgs,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct AskedAnswer {
    max_tokens: usize,
    #[serde(default)]
    temperature: f64,
    #[serde(default = "whole")]
    top_p: f64,
    #[serde(default)]
    seed: u64,
}

fn whole() -> f64 {
    1.0
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AskedCauses {
    answer: Vec<u32>,
    /// Number of leading thought tokens.
    #[serde(default)]
    thought: usize,
    how: String,
    windows: Option<usize>,
    controls: String,
    #[serde(default)]
    seed: u64,
}

/// Needles of a head search: a number of built-in ones, or a list.
#[derive(Deserialize)]
#[serde(untagged)]
enum AskedNeedles {
    First(usize),
    These(Vec<Needle>),
}

/// Text, thought, stop reason, tokens, number of thought tokens.
type SaidAnswer = (String, Option<String>, String, Vec<u32>, usize);

type Answered<'py> = (SaidAnswer, Arrays<'py>);

impl AskedAnswer {
    fn generate(self, text: &ModelText) -> anyhow::Result<Generate> {
        let AskedAnswer { max_tokens, temperature, top_p, seed } = self;
        ensure!(max_tokens > 0, "max_tokens is 0; give at least 1");
        ensure!(
            temperature.is_finite() && temperature >= 0.0,
            "temperature is {temperature}; give 0 (greedy) or more"
        );
        ensure!(top_p > 0.0 && top_p <= 1.0, "top_p is {top_p}; give more than 0 and at most 1");
        let sampling = Sampling { temperature, top_p, seed, max_new_tokens: max_tokens };
        Ok(Generate { thinker: text.thinker(), ..Generate::new(sampling, text.stop.clone()) })
    }
}

/// Parses a request; `generate` and `evict` have their own options.
fn job_of(asked: &str, prompt: &Prompt, text: &ModelText) -> anyhow::Result<(TraceJob, Generate)> {
    let mut asked: Value = serde_json::from_str(asked)?;
    let mut own = |name: &str| asked.as_object_mut().and_then(|asked| asked.remove(name));
    let (answer, evict) = (own("generate"), own("evict"));
    let evict: Option<Evict> = evict.map(serde_json::from_value).transpose()?.flatten();
    let answer: Option<AskedAnswer> = answer.map(serde_json::from_value).transpose()?.flatten();
    let generate = answer.map(|answer| answer.generate(text)).transpose()?.unwrap_or_default();
    let request: ObserveRequest = serde_json::from_value(asked)?;
    let request = ObserveRequest { generate: Some(generate.room()), ..request };
    let job = request.of_prompt(&prompt.named, text.into(), PLACE)?;
    let job = match evict {
        None => job,
        Some(evict) => job.evicting(evict, QUESTION, generate.sampling.seed)?,
    };
    Ok((job, generate))
}

impl Model {
    /// Rejects another model's prompt, and a forked process.
    fn check(&self, prompt: Option<&Prompt>) -> PyResult<()> {
        let checked = || {
            ensure!(
                std::process::id() == self.process,
                "{} was opened in another process, from which this one was forked; open it here, or start processes with `spawn`",
                self.text.name
            );
            ensure!(
                prompt.is_none_or(|prompt| prompt.digest == self.digest),
                "the prompt was made by another model; make it with this one's `prompt`"
            );
            Ok(())
        };
        checked().map_err(|e| raised(&e))
    }
}

#[pymethods]
impl Model {
    /// Opens a model by its name, its id on the Hugging Face hub, its folder or its .gguf file.
    #[staticmethod]
    #[pyo3(signature = (name_or_path, device, dtype=None, context=None))]
    fn load(
        py: Python<'_>,
        name_or_path: String,
        device: String,
        dtype: Option<String>,
        context: Option<usize>,
    ) -> PyResult<Self> {
        work::run(py, None, move |_| {
            let dtype = dtype.map(|dtype| ["--dtype".to_owned(), dtype]).into_iter().flatten();
            let args =
                ["palimpsest".to_owned(), "--device".to_owned(), device.clone()].into_iter().chain(dtype);
            let Flags { loaded } = clap::Parser::try_parse_from(args)?;
            let options = LocalOptions {
                devices: loaded.on.open()?,
                dtype: loaded.in_dtype.dtype()?,
                context: context
                    .map_or(ContextLength::AtMost(palimpsest_core::CONTEXT), ContextLength::Exactly),
                logits: LOGITS_AT_ONCE,
                branches: Branches::default(),
                observed: OBSERVED,
                hides_keys: true,
                ..LocalOptions::default()
            };
            let is_cpu = loaded.on.is_cpu();
            let Opened { mut model, digest, .. } = models::open(&name_or_path, &options)?;
            let dtype = model.session().dtype();
            let spec = model.engine().decoder().spec();
            let (layers, vocabulary) = (spec.layers.len(), spec.vocab);
            let heads = spec.layers.iter().find_map(|layer| Some(layer.attention()?.heads)).unwrap_or(0);
            // Elsewhere reuse can change results.
            let alone = is_cpu && model.engine().decoder().formats().hidden_in_f32();
            let reuse = if alone { Reuse::Longest } else { Reuse::Prefix };
            let text = model.text().clone();
            let process = std::process::id();
            let queue = Queue::new(model);
            Ok(Model { queue, text, digest, dtype, device, layers, heads, vocabulary, reuse, process })
        })
    }

    /// The manifest's name, or that of the file or folder.
    #[getter]
    fn name(&self) -> &str {
        &self.text.name
    }

    /// SHA-256 of weights and tokenizer.
    #[getter]
    fn digest(&self) -> &str {
        &self.digest
    }

    /// The dtype that it runs in.
    #[getter]
    fn dtype(&self) -> &str {
        &self.dtype
    }

    /// The device that it runs on.
    #[getter]
    fn device(&self) -> &str {
        &self.device
    }

    /// Decoder layers.
    #[getter]
    fn layers(&self) -> usize {
        self.layers
    }

    /// Query heads of a softmax layer; 0 without any.
    #[getter]
    fn heads(&self) -> usize {
        self.heads
    }

    /// Tokens that it knows.
    #[getter]
    fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Most tokens of prompt and answer together.
    #[getter]
    fn context(&self) -> usize {
        self.text.context
    }

    /// The tokens of a text or a conversation (JSON) with spans (a JSON object).
    fn prompt(&self, py: Python<'_>, source: &str, spans: &str) -> PyResult<Prompt> {
        self.check(None)?;
        let digest = self.digest.clone();
        work::run(py, None, |_| Prompt::new(source, spans, TextTools::from(&self.text), digest))
    }

    /// The ids of a text's tokens.
    fn encode(&self, py: Python<'_>, text: &str) -> PyResult<Vec<u32>> {
        self.check(None)?;
        work::run(py, None, |_| Ok(self.text.tokenizer.encode(text)?))
    }

    /// The texts of tokens, one by one.
    fn decode(&self, py: Python<'_>, tokens: Vec<u32>) -> PyResult<Vec<String>> {
        work::run(py, None, |_| {
            let decode = |&token: &u32| Ok(self.text.tokenizer.decode(&[token], false)?);
            tokens.iter().map(decode).collect()
        })
    }

    /// Reads a prompt and measures it.
    #[pyo3(signature = (prompt, asked, progress=None))]
    fn trace<'py>(
        &self,
        py: Python<'py>,
        prompt: &Prompt,
        asked: &str,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Arrays<'py>> {
        self.check(Some(prompt))?;
        let (_, found) = self.pass(py, prompt, asked, progress)?;
        arrays::of(py, found)
    }

    /// Generates an answer to a prompt and measures both.
    #[pyo3(signature = (prompt, asked, progress=None))]
    fn generate<'py>(
        &self,
        py: Python<'py>,
        prompt: &Prompt,
        asked: &str,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Answered<'py>> {
        self.check(Some(prompt))?;
        let (answer, found) = self.pass(py, prompt, asked, progress)?;
        Ok((answer, arrays::of(py, found)?))
    }

    /// Measures the effect of each span on an answer; JSON.
    #[pyo3(signature = (prompt, asked, progress=None))]
    fn causes(
        &self,
        py: Python<'_>,
        prompt: &Prompt,
        asked: &str,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<String> {
        self.check(Some(prompt))?;
        self.queue.run(py, progress, |model, watch| {
            let asked: AskedCauses = serde_json::from_str(asked)?;
            let AskedCauses { answer, thought, how, windows, controls, seed } = asked;
            let way: Way = how.parse()?;
            ensure!(windows != Some(0), "windows is 0; give layers of a window, at least 1");
            ensure!(windows.is_none() || way == Way::Block, "windows are of how=\"block\"; leave them out");
            let controls: Controls = controls.parse()?;
            let options = SpanCauseOptions { way, windows, controls, seed };
            let vocabulary = self.vocabulary;
            if let Some(token) = answer.iter().find(|token| **token as usize >= vocabulary) {
                anyhow::bail!("the answer has token {token}, and the model's vocabulary has {vocabulary}");
            }
            let named = &prompt.named;
            let said = Said { tokens: &answer, thought };
            let mut go_on = |tokens: usize| {
                watch.add(usize::from(tokens == 0));
                watch.goes_on()
            };
            let of = (named.encoded.ids.as_slice(), named.keys.as_slice(), QUESTION);
            let found = measure(model, of, said, options, &mut go_on)?;
            Ok(serde_json::to_string(&found)?)
        })
    }

    /// Scores heads by needles (JSON: a number, a list, or null for all); the JSON of the file that `palimpsest heads` writes.
    #[pyo3(signature = (needles, progress=None))]
    fn score_heads(&self, py: Python<'_>, needles: &str, progress: Option<Py<PyAny>>) -> PyResult<String> {
        self.check(None)?;
        self.queue.run(py, progress, |model, watch| {
            let asked = serde_json::from_str::<Option<AskedNeedles>>(needles);
            let asked = asked.context(
                "needles are a number of the built-in ones, or a list of {\"sentence\", \"answer\", \"question\"}, the answer a part of \
                 the sentence",
            )?;
            let mut all = plant::needles()?;
            let needles = match asked {
                None => all,
                Some(AskedNeedles::First(count)) => {
                    ensure!(count > 0, "needles is 0; give at least 1");
                    all.truncate(count);
                    all
                }
                Some(AskedNeedles::These(needles)) => needles,
            };
            ensure!(!needles.is_empty(), "there are no needles; give at least one");
            let context = model.context().min(NEEDLE_CONTEXT);
            let options = ProbingOptions { context, max_new_tokens: NEEDLE_ANSWER, seed: 0 };
            let scores = probe((model, &self.digest), &needles, options, watch.stopped(), false)?;
            Ok(scores.context("interrupted")?.json()?)
        })
    }
}

impl Model {
    fn pass<'a>(
        &'a self,
        py: Python<'_>,
        prompt: &'a Prompt,
        asked: &'a str,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<(SaidAnswer, TraceTensors)> {
        self.queue.run(py, progress, |model, watch: &Watch| {
            let (job, generate) = job_of(asked, prompt, &self.text)?;
            let session = model.session();
            let traced = job.read(session, self.reuse, generate, &mut |event| {
                match event {
                    Event::Begun(read) => watch.add(*read),
                    Event::Prefilled(tokens) => watch.add(*tokens),
                    Event::Token(_) => watch.add(1),
                    _ => {}
                }
                watch.goes_on()
            })?;
            let generated = &traced.measured.generated;
            let (split, stop) = self.text.split(generated)?;
            let stop = serde_json::to_value(stop)?.as_str().unwrap_or_default().to_owned();
            let answer = (
                split.answer.unwrap_or_default(),
                split.thought,
                stop,
                traced.generated.clone(),
                generated.thought,
            );
            Ok((answer, traced.tensors(&job, self.dtype.clone())))
        })
    }
}
