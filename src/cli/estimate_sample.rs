//! The cases that an estimate looks at.

use crate::run::plan::PlannedCase;

/// Cases that are cut and tokenised; a data set of no more is tokenised whole.
const SAMPLE: usize = 8;
/// The cases of the plan that are looked at: at even distances. Broken rows are not asked.
pub(super) fn sample(plan: &[PlannedCase]) -> Vec<&PlannedCase> {
    let sound: Vec<&PlannedCase> = plan.iter().filter(|case| case.broken.is_none()).collect();
    let n = sound.len().min(SAMPLE);
    (0..n).filter_map(|i| sound.get((2 * i + 1) * sound.len() / (2 * n)).copied()).collect()
}

/// `400 cases`, broken rows apart.
pub(super) fn count_of_cases(plan: &[PlannedCase]) -> String {
    let sound = plan.iter().filter(|case| case.broken.is_none()).count();
    match plan.len() - sound {
        0 => format!("{sound} cases"),
        broken => format!("{sound} cases ({broken} broken rows apart)"),
    }
}
