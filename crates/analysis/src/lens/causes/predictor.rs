//! The numbers of a session that are held against its effect: measures of attention, and other interventions.

use palimpsest_run::runs::causes::rows::Ablation;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Predictor {
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
    Effect,
}

/// A way to leave sessions out, other than to block the direct paths of one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Intervention {
    /// One session removed and all after it read again: its total effect.
    Total,
    /// ContextCite's surrogate: the weight of a session in a sparse linear fit to random subsets.
    ContextCite {
        /// The way in which sessions outside a subset were left out.
        ablation: Ablation,
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

    pub fn key(self) -> String {
        self.names().0
    }

    pub fn label(self) -> String {
        self.names().1
    }

    fn names(self) -> (String, String) {
        let of = |key: &str, label: &str| (key.to_owned(), label.to_owned());
        match self {
            Predictor::Mass => of("mass", "mass from the question"),
            Predictor::Density => of("density", "density from the question"),
            Predictor::AnswerMass => of("answer_mass", "mass from the answer"),
            Predictor::ValueNorm => of("value_norm", "value norm"),
            Predictor::OutputNorm => of("output_norm", "output norm"),
            Predictor::Attribution => of("attribution", "attribution"),
            Predictor::RetrievalHeads => of("retrieval_heads", "mass by retrieval heads"),
            Predictor::QrHeads => of("qr_heads", "mass by QR heads"),
            Predictor::Ridge => of("ridge", "ridge over heads (held out)"),
            Predictor::Intervention(Intervention::Total) => of("total_effect", "total effect (removed)"),
            Predictor::Intervention(Intervention::ContextCite { ablation, subsets }) => {
                let ablation = ablation.key();
                let key = format!("contextcite_{ablation}_{subsets}");
                (key, format!("ContextCite ({ablation}, {subsets} subsets)"))
            }
            Predictor::Effect => of("effect", "effect itself"),
        }
    }

    /// True if it comes of reading the answer once: neither an intervention nor the effect.
    pub fn is_measure(self) -> bool {
        !matches!(self, Predictor::Intervention(_) | Predictor::Effect)
    }

    /// True if it is a length in the residual stream. Lengths grow with depth, so that each layer is divided by its own sum before
    /// layers are averaged.
    pub(super) fn is_norm(self) -> bool {
        matches!(self, Predictor::ValueNorm | Predictor::OutputNorm)
    }
}
