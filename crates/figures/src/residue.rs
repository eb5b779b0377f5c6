//! Figure of residues: direct, total and residual effects by role, and carriers by distance.

use super::Figure;
use super::cause_effects::AXIS;
use super::intervals::{Intervals, Line};
use super::meaning::Meaning;
use palimpsest_analysis::lens::band::Estimate;
use palimpsest_analysis::lens::causes::residue::{Residues, numbers};

/// Returns `None` if no total effect and no carrier was measured.
pub(super) fn figure(residues: &Residues, title: String, origin: &str) -> Option<Figure> {
    let (axis, needs) = match residues.of_contrasts {
        true => ("effect: fall of the contrast (nats)", "above 0 the contrast needs the session"),
        false => (AXIS, "above 0 the answer needs the session"),
    };
    let lines = residues.roles().into_iter().flat_map(|role| lines(residues, role)).collect();
    let caption = format!(
        "Direct: the session is hidden from everything from the question on, as its eviction from a cache does. Removed, replaced by neutral text \
         of equal length, hidden from all later rows: it was never read. Left: that less the direct effect, which is held by later positions. \
         Carried: what hiding the session from later sessions at such a distance, each by itself, takes beyond the direct effect. Means over the \
         sessions in a role and the answers of a case, then over cases; {needs}."
    );
    let intervals = Intervals { axis: axis.to_owned(), lines, ..Intervals::default() };
    residues.is_measured().then(|| intervals.figure("causes-left-behind", (title, origin), caption))
}

fn lines(residues: &Residues, role: &str) -> Vec<Line> {
    let own = Meaning::of_role(role).unwrap_or(Meaning::Group(0)).colour();
    let line = |(label, estimate, is_left): (String, Estimate, bool)| Line {
        group: role.to_owned(),
        label,
        estimate,
        colour: if is_left { Meaning::Others.colour() } else { own },
        mark: None,
    };
    numbers(residues, role).into_iter().map(line).collect()
}
