//! The passes of a `trace` job: one, or with `--compare` a plain one and one with knock-outs.

use std::path::Path;

use palimpsest_core::engine::{Backend, Event, Reuse, Session};
use serde_json::{Map, Value};

use super::trace_words::{Words, compared, told};
use crate::observe::{Compared, TraceJob, Traced};

pub(super) enum Passes {
    One(Box<Traced>),
    Both(Box<Compared>),
}

impl Passes {
    /// `compare` reads jobs with knock-outs twice.
    pub fn read(
        job: &TraceJob,
        compare: bool,
        session: &mut Session,
        reuse: Reuse,
        on_event: &mut dyn FnMut(&Event) -> bool,
    ) -> anyhow::Result<Self> {
        Ok(match compare && !job.request.knockouts.is_empty() {
            true => Passes::Both(Box::new(job.compare(session, on_event)?)),
            false => Passes::One(Box::new(job.read(session, reuse, job.greedily(), on_event)?)),
        })
    }

    pub fn write(&self, job: &TraceJob, session: &Session, out: &Path) -> anyhow::Result<()> {
        match self {
            Passes::One(traced) => traced.tensors(job, session.dtype()).write(out)?,
            Passes::Both(found) => found.write(job, &session.dtype(), out)?,
        }
        Ok(())
    }

    /// The pass with the job's knock-outs.
    pub fn last(&self) -> &Traced {
        match self {
            Passes::One(traced) => traced,
            Passes::Both(found) => &found.knocked_out,
        }
    }

    pub fn plain(&self) -> Option<&Traced> {
        match self {
            Passes::One(_) => None,
            Passes::Both(found) => Some(&found.plain),
        }
    }

    pub fn told(&self, words: Words<'_>) -> anyhow::Result<String> {
        match self {
            Passes::One(traced) => told(words, traced),
            Passes::Both(found) => compared(words, found),
        }
    }

    /// The fields of a job's row.
    pub fn fields(&self, words: Words<'_>) -> Map<String, Value> {
        let last = self.last();
        let mut fields = Map::from_iter([
            ("tokens".to_owned(), words.job.tokens.len().into()),
            ("reused".to_owned(), last.measured.reused.into()),
            ("seconds".to_owned(), last.seconds.into()),
        ]);
        fields.extend(words.fields(last));
        if !last.hidden.is_empty() {
            fields.insert("hidden".to_owned(), last.hidden_json().into());
        }
        if let Passes::Both(found) = self {
            fields.insert("plain".to_owned(), words.fields(&found.plain).into());
            fields.insert("compare".to_owned(), found.numbers());
        }
        fields
    }
}
