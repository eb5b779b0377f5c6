//! The numbers of a session that are held against its effect: measures of attention, and other interventions.

use crate::run::cause_rows::Ablation;

/// A number that each session has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Predictor {
    /// Mass from the question's tokens.
    Mass,
    /// The same over the mass of uniform attention.
    Density,
    /// Mass from the positions that predict the answer.
    AnswerMass,
    /// The mass with each key weighted by the length of its value behind the output projection.
    ValueNorm,
    /// The length of the head's output over the session.
    OutputNorm,
    /// The direct contribution to the answer's own logits.
    Attribution,
    /// The question's mass, heads weighted by their retrieval scores.
    RetrievalHeads,
    /// The question's mass, heads weighted by their QR scores.
    QrHeads,
    /// The mass by layer and head under the weights of a ridge regression on effects.
    Ridge,
    /// The result of another intervention on the same session.
    Intervention(Intervention),
    /// The effect itself.
    Effect,
}

/// A way to leave sessions out, other than to block the direct paths of one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Intervention {
    /// One session removed and all after it read again: its total effect.
    Total,
    /// ContextCite's surrogate: the weight of a session in a sparse linear fit to random subsets.
    ContextCite {
        /// How sessions outside a subset were left out.
        ablation: Ablation,
        /// Number of subsets of an answer.
        subsets: usize,
    },
}

impl Predictor {
    /// Those that have a number at every layer, in the order of the figures.
    pub const BY_LAYER: [Predictor; 8] = [
        Predictor::Mass,
        Predictor::Density,
        Predictor::AnswerMass,
        Predictor::ValueNorm,
        Predictor::OutputNorm,
        Predictor::Attribution,
        Predictor::RetrievalHeads,
        Predictor::QrHeads,
    ];

    /// As tables write it.
    pub fn key(self) -> String {
        match self {
            Predictor::Mass => "mass".to_owned(),
            Predictor::Density => "density".to_owned(),
            Predictor::AnswerMass => "answer_mass".to_owned(),
            Predictor::ValueNorm => "value_norm".to_owned(),
            Predictor::OutputNorm => "output_norm".to_owned(),
            Predictor::Attribution => "attribution".to_owned(),
            Predictor::RetrievalHeads => "retrieval_heads".to_owned(),
            Predictor::QrHeads => "qr_heads".to_owned(),
            Predictor::Ridge => "ridge".to_owned(),
            Predictor::Intervention(Intervention::Total) => "total_effect".to_owned(),
            Predictor::Intervention(Intervention::ContextCite { ablation, subsets }) => {
                format!("contextcite_{}_{subsets}", ablation.key())
            }
            Predictor::Effect => "effect".to_owned(),
        }
    }

    /// As figures write it.
    pub fn label(self) -> String {
        match self {
            Predictor::Mass => "mass from the question".to_owned(),
            Predictor::Density => "density from the question".to_owned(),
            Predictor::AnswerMass => "mass from the answer".to_owned(),
            Predictor::ValueNorm => "value norm".to_owned(),
            Predictor::OutputNorm => "output norm".to_owned(),
            Predictor::Attribution => "attribution".to_owned(),
            Predictor::RetrievalHeads => "mass by retrieval heads".to_owned(),
            Predictor::QrHeads => "mass by QR heads".to_owned(),
            Predictor::Ridge => "ridge over heads (held out)".to_owned(),
            Predictor::Intervention(Intervention::Total) => "total effect (removed)".to_owned(),
            Predictor::Intervention(Intervention::ContextCite { ablation, subsets }) => {
                format!("ContextCite ({}, {subsets} subsets)", ablation.key())
            }
            Predictor::Effect => "effect itself".to_owned(),
        }
    }

    /// Whether it comes of reading the answer once: neither an intervention nor the effect.
    pub fn is_measure(self) -> bool {
        !matches!(self, Predictor::Intervention(_) | Predictor::Effect)
    }

    /// Whether it is a length in the residual stream. Lengths grow with depth, so that each layer is divided by its own sum before
    /// layers are averaged.
    pub(super) fn is_norm(self) -> bool {
        matches!(self, Predictor::ValueNorm | Predictor::OutputNorm)
    }
}
