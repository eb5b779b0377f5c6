//! One prompt read twice, plain and with its knock-outs, and how the predictions of the two passes differ.

use std::path::Path;

use anyhow::ensure;
use palimpsest_core::ablate::{Effect, Metric, Prompt, Said, Target, divergence};
use palimpsest_core::attention::{StoreError, Values, write_tensors};
use palimpsest_core::engine::{Backend, Event, Reuse, Session};
use palimpsest_core::timing;
use serde_json::json;

use super::job::TraceJob;
use super::pass::{TraceTensors, Traced};

/// A plain pass, the same pass with knock-outs, and their difference.
pub struct Compared {
    pub plain: Traced,
    pub knocked_out: Traced,
    /// KL(plain || knocked out) of the next token after the prompt, in nats.
    pub kl: f64,
    /// The plain pass's answer under teacher forcing; absent if it has no token.
    pub answer: Option<AnswerEffect>,
}

/// Effect of the knock-outs on the plain pass's answer.
pub struct AnswerEffect {
    /// Natural-log probability of the answer in the plain pass, mean per token.
    pub log_p: f64,
    pub effect: Effect,
}

impl TraceJob {
    /// Refuses a job without knock-outs.
    pub fn check_compare(&self) -> anyhow::Result<()> {
        ensure!(
            !self.request.knockouts.is_empty(),
            "{}: nothing is knocked out, so that there is nothing to compare; add --knockout 'ROWS->LABEL' (in a tokens file `knockouts`), \
             or leave --compare out",
            self.place
        );
        Ok(())
    }

    /// Reads the prompt without and then with its knock-outs; both decode greedily. The second pass reuses the first one's tokens before
    /// the first blocked or measured row.
    pub fn compare(
        &self,
        session: &mut Session,
        on_event: &mut dyn FnMut(&Event) -> bool,
    ) -> anyhow::Result<Compared> {
        self.check_compare()?;
        let plain = self.read_plain(session, Reuse::Longest, self.greedily(), on_event)?;
        let knocked_out = self.read(session, Reuse::Longest, self.greedily(), on_event)?;
        let kl = divergence(&plain.next_logits(), &knocked_out.next_logits());
        let answer = self.effect_on(&plain.generated, session)?;
        Ok(Compared { plain, knocked_out, kl, answer })
    }

    fn effect_on(&self, answer: &[u32], session: &mut Session) -> anyhow::Result<Option<AnswerEffect>> {
        if answer.is_empty() {
            return Ok(None);
        }
        let kinds = session.layer_kinds();
        let holes = self.holes(&kinds)?;
        let (cut, question) = (self.shared(&holes, session.engine()), holes.first_row().unwrap_or(0));
        let prompt = Prompt { tokens: &self.tokens, cut, question, kinds: &kinds };
        let (history, said) = (prompt.history(), Said { tokens: answer, thought: 0 });
        let metric = Metric::read(session, &history, Target::Answer(said), &mut |_| true)?;
        let mut effect = None;
        metric.effects(session, &history, &[holes], &mut |_| true, &mut |_, row| {
            effect = row.effect();
            true
        })?;
        Ok(effect.map(|effect| AnswerEffect { log_p: metric.value(), effect }))
    }
}

impl Compared {
    /// Writes the tensors of the pass with knock-outs under their usual names, those of the plain one as `plain.NAME`.
    pub fn write(&self, job: &TraceJob, dtype: &str, out: &Path) -> Result<(), StoreError> {
        let TraceTensors { tensors, mut metadata } = self.knocked_out.tensors(job, dtype.to_owned());
        let plain = self.plain.tensors(job, dtype.to_owned());
        let of_plain = |name: &str| format!("plain.{name}");
        let names: Vec<String> = plain.tensors.iter().map(|(name, ..)| of_plain(name)).collect();
        let named = names.iter().zip(plain.tensors).map(|(name, (_, x, shape))| (name.as_str(), x, shape));
        let tensors: Vec<(&str, Values, Vec<usize>)> = tensors.into_iter().chain(named).collect();
        let rows = plain.metadata.into_iter().find(|(key, _)| *key == "rows");
        metadata.extend(rows.map(|(_, rows)| ("plain.rows", rows)));
        metadata.push(("compare", self.numbers().to_string()));
        let _writing = timing::io();
        write_tensors(out, &tensors, &metadata)
    }

    /// The differences as JSON.
    pub fn numbers(&self) -> serde_json::Value {
        let mut numbers = json!({"kl": self.kl});
        if let Some(AnswerEffect { log_p, effect }) = &self.answer {
            numbers["plain_answer_log_p"] = json!(log_p);
            numbers["log_p_drop"] = json!(effect.log_p_drop);
            numbers["kl_answer"] = json!(effect.kl_answer);
        }
        numbers
    }
}
