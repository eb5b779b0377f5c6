//! Predictors of a session's effect: attention measures and other interventions.

use palimpsest_run::runs::causes::rows::Ablation;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Predictor {
    Mass,
    Density,
    AnswerMass,
    /// Mass with each key weighted by the norm of its projected value.
    ValueNorm,
    /// Norm of the head's output over the session.
    OutputNorm,
    Attribution,
    RetrievalHeads,
    QrHeads,
    /// Ridge regression of effects on the mass by layer and head.
    Ridge,
    Intervention(Intervention),
    Effect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Intervention {
    /// Session removed and later tokens recomputed: total effect.
    Total,
    /// Session shown to layers with a sliding window.
    Forced,
    /// ContextCite: weight of a session in a sparse linear fit to random subsets.
    ContextCite { ablation: Ablation, subsets: usize },
}

impl Predictor {
    /// Predictors with a value at every layer, in figure order.
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
            Predictor::Intervention(Intervention::Forced) => of("forced_effect", "effect of forcing"),
            Predictor::Intervention(Intervention::ContextCite { ablation, subsets }) => {
                let ablation = ablation.key();
                let key = format!("contextcite_{ablation}_{subsets}");
                (key, format!("ContextCite ({ablation}, {subsets} subsets)"))
            }
            Predictor::Effect => of("effect", "effect itself"),
        }
    }

    /// True if it is computed from one forward pass: neither an intervention nor the effect.
    pub fn is_measure(self) -> bool {
        !matches!(self, Predictor::Intervention(_) | Predictor::Effect)
    }

    /// True for residual-stream norms. They grow with depth, so each layer is normalised before averaging.
    pub(super) fn is_norm(self) -> bool {
        matches!(self, Predictor::ValueNorm | Predictor::OutputNorm)
    }
}
