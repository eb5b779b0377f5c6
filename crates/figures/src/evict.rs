//! Figures of evictions: accuracy, update effect, kept keys and what outlives what, by kept budget.

use super::Figure;
use super::dose::{About, DoseLine, DosePanel, origin_of};
use super::meaning::{Meaning, Named};
use super::style::GREY;
use palimpsest_analysis::dose::estimate::Estimate;
use palimpsest_analysis::evict::tables::policy;
use palimpsest_analysis::evict::{ACCURACY, EFFECT, EvictionRow, Evictions, OUTLIVED, kept};
use palimpsest_core::evict::{Evict, Keep};
use palimpsest_data::ground::order::{sorted_unique, unique};
use palimpsest_data::ground::words::counted;
use palimpsest_run::runs::condition::label;

const BARS: &str = " Bars: 95% intervals over cases (items, for data made of twins).";
const NOTHING: &str = "nothing evicted";

pub(super) fn of_evictions(evictions: &Evictions) -> Vec<Figure> {
    let questions = evictions.rows.first().map_or(0, |row| row.questions);
    let units = counted(questions, "question");
    let origin = origin_of((&evictions.model, &evictions.dataset), &units, &evictions.dir);
    let groups = groups(evictions);
    let panels = |number: &str| groups.iter().map(|group| group.by_policy(number)).collect::<Vec<_>>();
    let all = [
        About {
            name: "evict-effect",
            title: "Update effect by kept budget",
            caption: format!(
                "The update effect u where a policy keeps only some keys of the history, by how many it keeps: the mean over both orders of \
                 the values of log p of the current value less that of the replaced one. Dotted: the same questions with nothing \
                 evicted.{BARS}"
            ),
            y_label: "update effect u (nats)",
            panels: panels(EFFECT),
            ..About::default()
        },
        About {
            name: "evict-accuracy",
            title: "Accuracy by kept budget",
            caption: format!(
                "The share of right answers where a policy keeps only some keys of the history, by how many it keeps{}. Dotted: the same \
                 questions with nothing evicted. Bars: 95% intervals, as in tables of accuracies.",
                evictions.judge.as_ref().map_or(String::new(), |judge| format!("; by {judge}"))
            ),
            y_label: "share of right answers",
            ends: (0.0, 1.0),
            panels: panels(ACCURACY),
            ..About::default()
        },
        About {
            name: "evict-kept",
            title: "Kept keys by role",
            caption: format!(
                "The share of the keys that a policy kept, of all sessions, of the older and the newer evidence and of other roles, over \
                 layers that evict and key/value heads. Dotted: of all keys before the question.{BARS}"
            ),
            y_label: "kept share",
            ends: (0.0, 1.0),
            panels: groups.iter().flat_map(Group::by_role).collect(),
            ..About::default()
        },
        About {
            name: "evict-outlived",
            title: "The older evidence outlives the newer",
            caption: format!(
                "The share of questions of which a smaller share of the newer evidence's keys stayed than of the older evidence's, by kept \
                 budget: the update is forgotten before what it replaced.{BARS}"
            ),
            y_label: "share of questions",
            ends: (0.0, 1.0),
            panels: panels(OUTLIVED),
            ..About::default()
        },
    ];
    all.into_iter().filter_map(|about| about.figure(&origin)).collect()
}

/// Evicting conditions beside one without an eviction, with budgets of one kind.
struct Group<'a> {
    title: String,
    plain: Option<&'a EvictionRow>,
    rows: Vec<(&'a Evict, &'a EvictionRow)>,
    /// Ascending.
    budgets: Vec<Keep>,
}

fn groups(evictions: &Evictions) -> Vec<Group<'_>> {
    let bases = evictions.bases();
    let group = |(base, tokens): (&str, bool)| {
        let own = || evictions.rows.iter().filter(|row| row.base == base);
        let rows = own().filter_map(|row| Some((row.evict.as_ref()?, row)));
        let rows: Vec<(&Evict, &EvictionRow)> =
            rows.filter(|(evict, _)| matches!(evict.keep, Keep::Tokens(_)) == tokens).collect();
        let mut budgets = unique(rows.iter().map(|(evict, _)| evict.keep));
        budgets.sort_by(|a, b| size(*a).total_cmp(&size(*b)));
        let title = if bases.len() > 1 { label(base).to_owned() } else { String::new() };
        (!rows.is_empty()).then(|| Group {
            title,
            plain: own().find(|row| row.evict.is_none()),
            rows,
            budgets,
        })
    };
    bases.iter().flat_map(|base| [(*base, false), (*base, true)]).filter_map(group).collect()
}

fn size(keep: Keep) -> f64 {
    match keep {
        Keep::Share(share) => share,
        Keep::Tokens(tokens) => tokens as f64,
    }
}

impl<'a> Group<'a> {
    fn plain(&self, name: &str) -> Option<Estimate> {
        Some(self.plain?.number(name)?.value)
    }

    fn policies(&self) -> Vec<String> {
        unique(self.rows.iter().map(|(evict, _)| policy(evict)))
    }

    /// A number of one policy, by budget.
    fn points(&self, of: &str, name: &str) -> Vec<Option<Estimate>> {
        let at = |budget: &Keep| {
            let mut own = self.rows.iter().filter(|(evict, _)| evict.keep == *budget && policy(evict) == of);
            Some(own.next()?.1.number(name)?.value)
        };
        self.budgets.iter().map(at).collect()
    }

    fn panel(&self, title: String, mut lines: Vec<DoseLine>, dotted: DoseLine) -> DosePanel {
        lines.retain(|line| line.points.iter().any(Option::is_some));
        // A line of one point has no length.
        let alone = dotted.points.iter().flatten().map(|point| (point.mean, GREY));
        let baselines = if self.budgets.len() == 1 { alone.collect() } else { Vec::new() };
        let known = !lines.is_empty() && dotted.points.iter().any(Option::is_some);
        lines.extend(known.then_some(dotted));
        let tokens = self.budgets.iter().any(|budget| matches!(budget, Keep::Tokens(_)));
        DosePanel {
            title,
            x_label: if tokens { "kept keys a head" } else { "kept share of keys" }.to_owned(),
            levels: self.budgets.iter().map(Keep::to_string).collect(),
            lines,
            baselines,
            ..DosePanel::default()
        }
    }

    /// A line a policy, dotted without an eviction.
    fn by_policy(&self, name: &str) -> DosePanel {
        let line = |(nth, policy): (usize, &String)| {
            DoseLine::of(policy.clone(), Meaning::Group(nth).stroke(), self.points(policy, name))
        };
        let lines = self.policies().iter().enumerate().map(line).collect();
        let plain = vec![self.plain(name); self.budgets.len()];
        self.panel(self.title.clone(), lines, DoseLine::of(NOTHING, Meaning::Baseline.stroke(), plain))
    }

    /// A panel a policy, with a line a role.
    fn by_role(&self) -> Vec<DosePanel> {
        let names = self.rows.iter().flat_map(|(_, row)| &row.numbers).map(|number| number.name.as_str());
        let roles = names.filter_map(|name| name.strip_prefix("kept "));
        let roles: Vec<&str> = sorted_unique(roles).into_iter().filter(|role| *role != "all").collect();
        let strokes = Named::of(roles.iter().copied());
        let of = |policy: &String| {
            let line =
                |role: &&str| DoseLine::of(*role, strokes.stroke(role), self.points(policy, &kept(role)));
            let all = self.points(policy, &kept("all"));
            let title = [self.title.as_str(), policy].into_iter().filter(|part| !part.is_empty());
            let title = title.collect::<Vec<_>>().join(" · ");
            let all = DoseLine::of("all keys", Meaning::Baseline.stroke(), all);
            self.panel(title, roles.iter().map(line).collect(), all)
        };
        self.policies().iter().map(of).collect()
    }
}
