//! Plan of a run: cases and probes, fixed before the first answer.
//!
//! `plan.jsonl` (one line per case) is the source of every denominator and carries what judges and exchange formats need, so that later
//! steps do not read the benchmark file.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use palimpsest_data::benchmarks::{Benchmark, Dimension};
use palimpsest_data::case::draw::Draws;
use palimpsest_data::case::{Case, Evidence, Location, Notes, Probe};
use palimpsest_data::ground::file_stem::file_stem;
use palimpsest_data::ground::words::of_counted;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedCase {
    /// Zero-based position before sharding; merging checks it for gaps and duplicates.
    pub position: usize,
    pub case: String,
    pub labels: BTreeMap<String, String>,
    pub probes: Vec<PlannedProbe>,
    pub evidence: Vec<PlannedEvidence>,
    pub judge: Notes,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedProbe {
    pub id: String,
    pub query: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub facets: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<PlannedEvidence>,
    #[serde(default, skip_serializing_if = "Notes::is_empty")]
    pub judge: Notes,
    /// Conditions that skip this probe because the prompt lacks a span of their knock-out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
}

impl PlannedProbe {
    pub fn is_asked_under(&self, condition: &str) -> bool {
        !self.left_out.iter().any(|name| name == condition)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedEvidence {
    pub role: String,
    #[serde(rename = "session")]
    pub segment: usize,
    /// Absent for the whole segment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<usize>,
    /// Byte range in the turn's content; absent for the whole turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Range<usize>>,
}

impl PlannedEvidence {
    fn of(Evidence { role, place: Location { segment, turn, bytes } }: &Evidence) -> Self {
        PlannedEvidence { role: role.clone(), segment: *segment, turn: *turn, bytes: bytes.clone() }
    }
}

/// For job arrays: shard `index` of `count` holds positions p with p mod count = index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shard {
    pub index: usize,
    pub count: usize,
}

impl std::fmt::Display for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl FromStr for Shard {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        let parsed = || {
            let (index, count) = text.split_once('/')?;
            Some(Shard { index: index.trim().parse().ok()?, count: count.trim().parse().ok()? })
        };
        parsed().filter(|shard| shard.index < shard.count).ok_or_else(|| {
            PlanError(format!(
                "shard `{text}`: give i/n with 0 <= i < n, for example 0/4 for the first of four"
            ))
        })
    }
}

/// Random subset of the cases, with a fixed number per value of the split label.
///
/// Depends only on case ids, labels and seed, so all models get the same cases. Smaller subsets are contained in larger ones of the same
/// seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaseSample {
    pub cases: usize,
    pub seed: u64,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PlanError(String);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    pub split: &'static str,
    pub sample: Option<CaseSample>,
    /// Filter: a label value, a probe, or `VALUE/PROBE`.
    pub only: Option<String>,
    /// Maximum number of cases, after `only`.
    pub limit: Option<usize>,
    /// Maximum number of probes over all cases, chosen round-robin over the groups of [`Benchmark::dimension`] in order of first
    /// appearance, in file order within a group.
    pub limit_probes: Option<usize>,
    pub dimension: Dimension,
    pub shard: Option<Shard>,
}

impl PlannedCase {
    pub fn of(case: &Case) -> Self {
        let all = |evidence: &[Evidence]| evidence.iter().map(PlannedEvidence::of).collect();
        let probe = |probe: &Probe| PlannedProbe {
            id: probe.id.clone(),
            query: probe.query.clone(),
            facets: probe.facets.clone(),
            evidence: all(&probe.evidence),
            judge: case.judge.of_probes.get(&probe.id).cloned().unwrap_or_default(),
            left_out: Vec::new(),
        };
        PlannedCase {
            position: 0,
            case: case.id.clone(),
            labels: case.labels.clone(),
            probes: case.probes.iter().map(probe).collect(),
            evidence: all(&case.evidence),
            judge: case.judge.notes.clone(),
            broken: None,
        }
    }

    /// The case's evidence, then the probe's own.
    pub fn evidence_of<'a>(&'a self, probe: &'a PlannedProbe) -> impl Iterator<Item = &'a PlannedEvidence> {
        self.evidence.iter().chain(&probe.evidence)
    }
}

/// Why the benchmark's rubrics cannot judge these questions: some lack the note that judges need.
pub fn unjudgeable(plan: &[PlannedCase], benchmark: &Benchmark) -> Option<String> {
    let (note, column) = benchmark.judge_needs?;
    let sound = plan.iter().filter(|case| case.broken.is_none());
    let asked: Vec<&PlannedProbe> = sound.flat_map(|case| &case.probes).collect();
    let lacking: Vec<&str> =
        asked.iter().filter(|probe| !probe.judge.contains_key(note)).map(|probe| probe.id.as_str()).collect();
    let more = if lacking.len() > 5 { ", ..." } else { "" };
    (!lacking.is_empty()).then(|| {
        format!(
            "{} no expected answer ({}{more})",
            of_counted(lacking.len(), asked.len(), "question", ["has", "have"]),
            lacking.iter().take(5).copied().collect::<Vec<_>>().join(", ")
        ) + &format!("; fill the column `{column}` of the questions and run them into another folder")
    })
}

impl Selection {
    pub fn of_all(benchmark: &Benchmark) -> Self {
        Selection {
            split: benchmark.split,
            sample: None,
            only: None,
            limit: None,
            limit_probes: None,
            dimension: benchmark.dimension,
            shard: None,
        }
    }

    /// The plan, in dataset order. Applies `sample`, `only`, `limit`, `limit_probes` and `shard`, in this order.
    pub fn plan(&self, cases: &[Case]) -> Result<Vec<PlannedCase>, PlanError> {
        self.of(cases.iter().map(PlannedCase::of).collect())
    }

    /// [`Self::plan`] from planned cases, for datasets that do not fit in memory.
    pub fn of(&self, all: Vec<PlannedCase>) -> Result<Vec<PlannedCase>, PlanError> {
        let only = self.only.as_deref().map(|text| parse_only(text, self.split, &all)).transpose()?;
        let (only_value, only_probe) = only.unwrap_or_default();
        let none = all.is_empty();
        let drawn = self.sample.map(|sample| sample.draw(self.split, &all)).transpose()?;
        let mut selected: Vec<PlannedCase> = Vec::new();
        for mut case in all {
            if self.limit.is_some_and(|limit| selected.len() >= limit) {
                break;
            }
            if drawn.as_ref().is_some_and(|drawn| !drawn.contains(&case.case)) {
                continue;
            }
            let taken = only_value.as_ref().is_none_or(|value| case.labels.get(self.split) == Some(value));
            case.probes.retain(|probe| taken && only_probe.as_ref().is_none_or(|only| *only == probe.id));
            if !case.probes.is_empty() {
                selected.push(case);
            }
        }
        if let Some(most) = self.limit_probes {
            limit_probes(&mut selected, self.dimension, most);
        }
        let position = selected.len();
        let all = selected.into_iter().enumerate().map(|(position, case)| PlannedCase { position, ..case });
        let in_shard = |case: &PlannedCase| {
            self.shard.is_none_or(|shard| case.position % shard.count.max(1) == shard.index)
        };
        let plan: Vec<PlannedCase> = all.filter(in_shard).collect();
        if plan.is_empty() {
            let reason = match self {
                _ if none => "the dataset has no case".to_owned(),
                Selection { sample: Some(CaseSample { cases: 0, .. }), .. } => {
                    "the sample is of 0 cases; give at least 1".to_owned()
                }
                Selection { limit_probes: Some(0), .. } => {
                    "the limit of questions is 0; give at least 1".to_owned()
                }
                Selection { limit: Some(0), .. } => "the limit is 0; give at least 1".to_owned(),
                Selection { shard: Some(shard), .. } => {
                    format!("shard {shard} of {position} cases is empty; use fewer shards")
                }
                _ => "no case has a question".to_owned(),
            };
            return Err(PlanError(format!("nothing to run: {reason}")));
        }
        check_distinct(&plan)?;
        Ok(plan)
    }
}

/// Keeps `most` probes round-robin over groups, and drops cases without probes.
fn limit_probes(cases: &mut Vec<PlannedCase>, dimension: Dimension, most: usize) {
    let mut groups: Vec<(String, usize)> = Vec::new();
    let mut turns = Vec::new();
    for (at, case) in cases.iter().enumerate() {
        for (nth, probe) in case.probes.iter().enumerate() {
            let name = group_of(dimension, probe);
            let group = groups.iter().position(|(other, _)| *other == name).unwrap_or_else(|| {
                groups.push((name, 0));
                groups.len() - 1
            });
            turns.push((groups[group].1, group, at, nth));
            groups[group].1 += 1;
        }
    }
    turns.sort_unstable();
    let kept: BTreeSet<(usize, usize)> = turns.iter().take(most).map(|&(.., at, nth)| (at, nth)).collect();
    for (at, case) in cases.iter_mut().enumerate() {
        let mut places = 0..;
        case.probes.retain(|_| places.next().is_some_and(|nth| kept.contains(&(at, nth))));
    }
    cases.retain(|case| !case.probes.is_empty());
}

impl CaseSample {
    fn draw(self, split: &'static str, all: &[PlannedCase]) -> Result<BTreeSet<String>, PlanError> {
        let mut by_value: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for case in all {
            let value = case.labels.get(split).map_or("", String::as_str);
            by_value.entry(value).or_default().push(&case.case);
        }
        let mut drawn = BTreeSet::new();
        for (value, mut ids) in by_value {
            if ids.len() < self.cases {
                return Err(PlanError(format!(
                    "--sample {}: {split} {value} has {found} cases in this dataset; give at most {found}",
                    self.cases,
                    found = ids.len()
                )));
            }
            ids.sort_unstable();
            Draws::new("sample of cases", self.seed, value).shuffle(&mut ids);
            drawn.extend(ids.into_iter().take(self.cases).map(str::to_owned));
        }
        Ok(drawn)
    }
}

fn parse_only(
    text: &str,
    split: &'static str,
    cases: &[PlannedCase],
) -> Result<(Option<String>, Option<String>), PlanError> {
    let values: BTreeSet<&str> =
        cases.iter().filter_map(|c| c.labels.get(split)).map(String::as_str).collect();
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    let probes = cases.iter().flat_map(|c| &c.probes).map(|probe| probe.id.as_str());
    let probes: Vec<&str> = probes.filter(|id| seen.insert(id)).collect();
    let known_value = |name: &str| values.iter().find(|t| t.eq_ignore_ascii_case(name.trim())).copied();
    let known_probe = |name: &str| probes.iter().find(|p| p.eq_ignore_ascii_case(name.trim())).copied();
    let found = match text.trim().split_once('/') {
        Some((value, probe)) => {
            known_value(value).zip(known_probe(probe)).map(|(value, probe)| (Some(value), Some(probe)))
        }
        None => known_value(text)
            .map(|value| (Some(value), None))
            .or_else(|| known_probe(text).map(|probe| (None, Some(probe)))),
    };
    let Some((value, probe)) = found else {
        return Err(PlanError(format!(
            "filter `{text}` names nothing in this dataset; valid are a {split} ({}), a question form ({}), or both as {}/{}",
            values.iter().copied().collect::<Vec<_>>().join(", "),
            some(&probes),
            values.first().unwrap_or(&"VALUE"),
            probes.first().unwrap_or(&"PROBE")
        )));
    };
    Ok((value.map(str::to_owned), probe.map(str::to_owned)))
}

fn some(items: &[&str]) -> String {
    const MOST: usize = 12;
    match items.get(..MOST) {
        Some(first) if items.len() > MOST => format!("{}, ...", first.join(", ")),
        _ => items.join(", "),
    }
}

/// Value of [`Benchmark::dimension`]; the probe's id if it lacks the facet.
pub fn dimension_of(benchmark: &Benchmark, probe: &PlannedProbe) -> String {
    group_of(benchmark.dimension, probe)
}

fn group_of(dimension: Dimension, probe: &PlannedProbe) -> String {
    match dimension {
        Dimension::Probe => probe.id.clone(),
        Dimension::Facet(facet) => probe.facets.get(facet).unwrap_or(&probe.id).clone(),
    }
}

/// Refuses plans in which two probes would share a row or a file, also on case-insensitive file systems.
pub(super) fn check_distinct(plan: &[PlannedCase]) -> Result<(), PlanError> {
    let mut files = BTreeSet::new();
    for case in plan {
        let double = |probe: &str| {
            PlanError(format!(
                "case `{}` probe `{probe}` occurs twice, or its file name equals another's; make the ids distinct",
                case.case
            ))
        };
        if !files.insert(case_file(&case.case).to_lowercase()) {
            return Err(double(case.probes.first().map_or("", |p| p.id.as_str())));
        }
        for probe in &case.probes {
            if !files.insert(attention_file(&case.case, &probe.id, "").to_lowercase()) {
                return Err(double(&probe.id));
            }
        }
    }
    Ok(())
}

/// Relative to the run folder. The double hyphen separates the condition: condition names contain none.
pub fn attention_file(case: &str, probe: &str, condition: &str) -> String {
    let condition = if condition.is_empty() { String::new() } else { format!("--{}", file_stem(condition)) };
    format!("attention/{}-{}{condition}.safetensors", file_stem(case), file_stem(probe))
}

pub fn case_file(case: &str) -> String {
    format!("cases/{}.json", file_stem(case))
}
