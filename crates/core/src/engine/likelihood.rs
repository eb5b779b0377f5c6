//! Token likelihoods from logits.

use std::cmp::Ordering;

/// A token's log-probability with the top alternatives.
#[derive(Debug, Clone, PartialEq)]
pub struct Likelihood {
    /// Token id.
    pub token: u32,
    /// Natural-log probability.
    pub log_p: f64,
    /// Top tokens with natural-log probabilities, descending; ties by ascending id.
    pub likeliest: Vec<(u32, f64)>,
}

impl Likelihood {
    /// Likelihood of `token` with the top `most`, from finite logits (vocab). A token beyond the logits has probability 0.
    pub fn of(token: u32, logits: &[f32], most: usize) -> Self {
        let log_sum = log_sum_exp(logits);
        let log_p = |token: u32| log_p(token, logits, log_sum);
        let before = |a: &u32, b: &u32| -> Ordering {
            let (x, y) = (logits[*a as usize], logits[*b as usize]);
            y.total_cmp(&x).then(a.cmp(b))
        };
        let most = most.min(logits.len());
        let mut ids: Vec<u32> = Vec::new();
        if most > 0 {
            ids = (0..logits.len() as u32).collect();
            ids.select_nth_unstable_by(most - 1, before);
            ids.truncate(most);
            ids.sort_unstable_by(before);
        }
        Likelihood {
            token,
            log_p: log_p(token),
            likeliest: ids.into_iter().map(|id| (id, log_p(id))).collect(),
        }
    }
}

/// Natural-log probability of a token; minus infinity beyond the logits.
pub(crate) fn log_p(token: u32, logits: &[f32], log_sum: f64) -> f64 {
    logits.get(token as usize).map_or(f64::NEG_INFINITY, |&logit| f64::from(logit) - log_sum)
}

/// Log-sum-exp of finite logits.
pub fn log_sum_exp(logits: &[f32]) -> f64 {
    let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&x| f64::from(x - greatest).exp()).sum();
    f64::from(greatest) + sum.ln()
}

/// True if the token is the argmax, ties won by the smaller id.
pub fn is_likeliest(token: u32, logits: &[f32]) -> bool {
    let token = token as usize;
    logits.get(token).is_some_and(|own| {
        logits[..token].iter().all(|other| other < own) && logits[token..].iter().all(|other| other <= own)
    })
}
