//! Document scores from attention masses.
//!
//! A head pays a_d to document d and A to all; in the neutral request b_d and B. Its contribution is a_d - b_d A / B: mass beyond the
//! neutral distribution scaled to the same total (calibration by a null question, QRHead, arXiv 2506.09944). The score is the mean over
//! heads; scores sum to 0.

/// Document masses of one head: request, neutral request.
pub type HeadMasses = (Vec<f64>, Vec<f64>);

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ranked {
    pub score: f64,
    pub rank: usize,
    /// Head agreement, 0.5 to 1, that the document outranks the next one: share of positive differences in the sum of absolute differences.
    /// The last document is compared with the previous one, a single one with zero.
    pub sure: f64,
}

pub fn ranking(heads: &[HeadMasses], documents: usize) -> Vec<Ranked> {
    let beyond: Vec<Vec<f64>> = heads.iter().map(|(asked, neutral)| beyond(asked, neutral)).collect();
    let n = beyond.len().max(1) as f64;
    let score = |d: usize| beyond.iter().filter_map(|head| head.get(d)).sum::<f64>() / n;
    let scores: Vec<f64> = (0..documents).map(score).collect();
    let mut order: Vec<usize> = (0..documents).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    let mut ranked = vec![Ranked { score: 0.0, rank: 0, sure: 0.5 }; documents];
    for (place, &d) in order.iter().enumerate() {
        let (before, after) = match (order.get(place + 1), place.checked_sub(1).and_then(|p| order.get(p))) {
            (Some(&next), _) => (Some(d), Some(next)),
            (None, Some(&previous)) => (Some(previous), Some(d)),
            (None, None) => (Some(d), None),
        };
        let of = |head: &[f64], d: Option<usize>| d.and_then(|d| head.get(d).copied()).unwrap_or(0.0);
        let differences = beyond.iter().map(|head| of(head, before) - of(head, after));
        ranked[d] = Ranked { score: scores[d], rank: place + 1, sure: agreement(differences) };
    }
    ranked
}

/// a_d - b_d A / B; for a single document the plain difference.
fn beyond(asked: &[f64], neutral: &[f64]) -> Vec<f64> {
    let (all, usual): (f64, f64) = (asked.iter().sum(), neutral.iter().sum());
    let scale = match asked.len() {
        0 | 1 => 1.0,
        _ if usual > 0.0 => all / usual,
        _ => 0.0,
    };
    asked.iter().zip(neutral).map(|(a, b)| a - b * scale).collect()
}

/// Maximum difference of masses between chunkings of a prompt.
const NOISE: f64 = 1e-6;

/// Positive part of the sum of absolute differences; 0.5 if there are none.
fn agreement(differences: impl Iterator<Item = f64>) -> f64 {
    let differences = differences.filter(|d| d.abs() > NOISE);
    let (above, all) = differences.fold((0.0, 0.0), |(above, all), d| (above + d.max(0.0), all + d.abs()));
    if all > 0.0 { above / all } else { 0.5 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_is_the_mass_beyond_the_neutral_ones_division() {
        // Head 1: 0.6 in the neutral proportions of 0.3. Head 2 moves 0.1 to the last document.
        let heads = [(vec![0.2, 0.2, 0.2], vec![0.1, 0.1, 0.1]), (vec![0.1, 0.1, 0.4], vec![0.1, 0.2, 0.3])];
        let ranked = ranking(&heads, 3);
        let expected = [(0.0, 2), (-0.05, 3), (0.05, 1)];
        for (found, (score, rank)) in ranked.iter().zip(expected) {
            assert!((found.score - score).abs() < 1e-12 && found.rank == rank, "{ranked:?}");
        }
        // One head decides, the other abstains.
        assert!(ranked.iter().all(|document| (document.sure - 1.0).abs() < 1e-9), "{ranked:?}");
        assert!(ranked.iter().map(|document| document.score).sum::<f64>().abs() < 1e-12);
    }

    #[test]
    fn heads_that_contradict_each_other_leave_a_rank_unsure() {
        let neutral = vec![0.25, 0.25];
        let heads = [(vec![0.4, 0.1], neutral.clone()), (vec![0.15, 0.35], neutral)];
        let ranked = ranking(&heads, 2);
        // 0.3 against 0.2.
        assert!(ranked.iter().all(|document| (document.sure - 0.6).abs() < 1e-9), "{ranked:?}");
        assert_eq!((ranked[0].rank, ranked[1].rank), (1, 2));
        assert_eq!(ranking(&[], 2)[0].sure, 0.5);
        // Differences below the noise are ignored.
        let alike = ranking(&[(vec![0.3, 0.3 + 1e-8], vec![0.2, 0.2])], 2);
        assert_eq!(alike[0].sure, 0.5);
        let single = ranking(&[(vec![0.3], vec![0.1])], 1);
        assert!((single[0].score - 0.2).abs() < 1e-12 && single[0].sure == 1.0);
    }
}
