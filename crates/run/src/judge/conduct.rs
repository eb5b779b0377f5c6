use crate::chat::{CallTokens, ChatModel, Sampling, ScoringModel};

pub enum Judge<'a> {
    /// Scores `true` against `false` at each decision.
    Scoring(&'a mut dyn ScoringModel),
    /// Requests JSON, from an endpoint or a local model that thinks first.
    Reply { model: &'a mut dyn ChatModel, sampling: Sampling },
    /// Requests JSON, in parallel calls to an endpoint.
    Several { models: Vec<&'a mut (dyn ChatModel + Send)>, sampling: Sampling },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conduct {
    pub show_progress: bool,
    pub verbose: bool,
    /// Give up after this many consecutive calls without a verdict; never if absent.
    pub give_up_after: Option<usize>,
}

impl Conduct {
    pub const GIVE_UP_AFTER: usize = 10;
}

impl From<bool> for Conduct {
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
