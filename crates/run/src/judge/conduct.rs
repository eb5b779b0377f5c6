//! Judges, and the reporting of a judging.

use crate::chat::{CallTokens, ChatModel, Sampling, ScoringModel};

pub enum Judge<'a> {
    /// By weighing `true` against `false` at each decision.
    Scoring(&'a mut dyn ScoringModel),
    /// By asking for JSON: of an endpoint, or of a local model that is to think first.
    Reply { model: &'a mut dyn ChatModel, sampling: Sampling },
    /// By asking for JSON, several calls at once: of an endpoint.
    Several { models: Vec<&'a mut (dyn ChatModel + Send)>, sampling: Sampling },
}

/// Reporting of a judging, and when to give up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conduct {
    pub show_progress: bool,
    pub verbose: bool,
    /// After how many calls in a row whose replies hold no verdict it ends; never where absent.
    pub give_up_after: Option<usize>,
}

impl Conduct {
    pub const GIVE_UP_AFTER: usize = 10;
}

impl From<bool> for Conduct {
    /// Shows progress or not, without a line a verdict.
    fn from(show_progress: bool) -> Self {
        Conduct { show_progress, verbose: false, give_up_after: Some(Conduct::GIVE_UP_AFTER) }
    }
}

impl Judge<'_> {
    fn model(&self) -> Option<&dyn ChatModel> {
        match self {
            Judge::Scoring(model) => Some(&**model),
            Judge::Reply { model, .. } => Some(&**model),
            Judge::Several { models, .. } => models.first().map(|model| &**model as &dyn ChatModel),
        }
    }

    /// The judge's name, as verdict rows carry it.
    pub fn name(&self) -> String {
        self.model().map(ChatModel::name).unwrap_or_default()
    }

    pub(super) fn refused_parameters(&self) -> Vec<String> {
        self.model().map(ChatModel::refused_parameters).unwrap_or_default()
    }

    pub(super) fn take_tokens(&mut self) -> CallTokens {
        match self {
            Judge::Scoring(model) => model.take_tokens(),
            Judge::Reply { model, .. } => model.take_tokens(),
            Judge::Several { .. } => CallTokens::default(),
        }
    }
}
