//! Findings of synthetic runs: every number that is told, from the files by its plain definition.

use std::collections::BTreeMap;
use std::path::Path;

use palimpsest::benchmarks::ALL;
use palimpsest::finding::{Dot, Finding};
use palimpsest::lens::causes::{CausedAnswer, CausedSession, Causes, Control};
use palimpsest::lens::{Options, Study};
use palimpsest::runs::causes::rows::Effect;
use palimpsest_core::attention::AttentionStore;

use super::synthetic_run::{self as synthetic, JUDGE, PROBES, Plan};

const POOLED: [&str; 2] = ["SR", "IPA"];

/// A written run, with its measured answers in plan order.
struct Run {
    dir: tempfile::TempDir,
    plan: Plan,
    answers: Vec<(usize, &'static str)>,
}

impl Run {
    fn of(plan: Plan) -> Self {
        let dir = tempfile::tempdir().unwrap();
        synthetic::write(dir.path(), &plan);
        let all = (0..plan.cases).flat_map(|case| PROBES.map(|probe| (case, probe)));
        let answers = all.filter(|answer| *answer != (1, "PR")).collect();
        Run { dir, plan, answers }
    }

    fn study(&self) -> Study {
        Study::open(self.dir.path(), &[], &Options::default()).unwrap()
    }

    fn finding(&self, causes: Option<&Causes>) -> Finding {
        Finding::of(&self.study(), causes)
    }

    fn evidence(&self, case: usize) -> [(&'static str, usize); 2] {
        let (old, new) = synthetic::evidence(case, self.plan.sessions);
        [("new", new), ("old", old)]
    }

    /// Question's mass on a session by layer, mean over heads; `None` if the prompt lacks it.
    fn masses(&self, (case, probe): (usize, &str), session: usize) -> Option<Vec<f64>> {
        let name = format!("attention/case-{case:03}-{probe}.safetensors");
        let store = AttentionStore::load(&self.dir.path().join(name)).unwrap();
        let key = store.keys.iter().position(|key| key.segment() == Some(session))?;
        let row = store.rows.iter().position(|row| row.is("query")).unwrap();
        let (layers, heads, ..) = store.mass.dim();
        let of_layer = |layer: usize| {
            (0..heads).map(|head| f64::from(store.mass[[layer, head, row, key]])).sum::<f64>() / heads as f64
        };
        Some((0..layers).map(of_layer).collect())
    }

    fn mass(&self, answer: (usize, &str), session: usize) -> f64 {
        mean(&self.masses(answer, session).unwrap())
    }

    /// Mean mass of the nearest sessions on either side that the prompt has and that are no evidence.
    fn beside(&self, answer: (usize, &str), session: usize) -> f64 {
        let evidence = self.evidence(answer.0).map(|(_, index)| index);
        let stands = |i: &usize| !evidence.contains(i) && self.masses(answer, *i).is_some();
        let before = (0..session).rev().find(stands);
        let after = (session + 1..self.plan.sessions).find(stands);
        let masses: Vec<f64> = before.into_iter().chain(after).map(|i| self.mass(answer, i)).collect();
        mean(&masses)
    }

    /// Mean over cases of the mean over the pooled probes.
    fn over_cases(&self, of: impl Fn((usize, &'static str)) -> f64) -> f64 {
        let of_case = |case: usize| mean(&POOLED.map(|probe| of((case, probe))));
        mean(&(0..self.plan.cases).map(of_case).collect::<Vec<_>>())
    }

    /// The sum over cases of one role's mass over that of the other, by layer; mean over layers.
    fn ratio(&self) -> f64 {
        let layers = self.masses((0, "SR"), self.evidence(0)[0].1).unwrap().len();
        let side = |layer: usize, at: usize| {
            self.over_cases(|answer| self.masses(answer, self.evidence(answer.0)[at].1).unwrap()[layer])
        };
        mean(&(0..layers).map(|layer| side(layer, 0) / side(layer, 1)).collect::<Vec<_>>())
    }

    /// Answers in which the question attends more to the new session than to the old one.
    fn newer_first(&self, answer: (usize, &'static str)) -> bool {
        let [new, old] = self.evidence(answer.0).map(|(_, session)| self.mass(answer, session));
        new > old
    }

    /// Effects and controls of both sessions of every answer; [new, old] by `effect`.
    fn causes(&self, effect: impl Fn((usize, &'static str)) -> [f64; 2]) -> Causes {
        let mut causes = Causes::default();
        for &answer in &self.answers {
            let effects = effect(answer);
            let session = |((role, index), drop): ((&str, usize), f64)| CausedSession {
                span: format!("session[{index}]"),
                role: Some(role.to_owned()),
                tokens: 10,
                effect: Effect { log_p_drop: drop, ..Effect::default() },
                control: Some(Control { drop: 0.02, kl: 0.0, kl_answer: 0.0 }),
            };
            let mut caused = CausedAnswer::default();
            (caused.case, caused.probe) = (format!("case-{:03}", answer.0), answer.1.to_owned());
            caused.sessions = self.evidence(answer.0).into_iter().zip(effects).map(session).collect();
            causes.answers.push(caused);
        }
        causes
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Replaces text in a file of the run.
fn rewrite(dir: &Path, file: &str, change: impl FnOnce(&str) -> String) {
    let text = std::fs::read_to_string(dir.join(file)).unwrap();
    std::fs::write(dir.join(file), change(&text)).unwrap();
}

/// Changes every answer of the run.
fn rewrite_rows(dir: &Path, mut change: impl FnMut(&mut serde_json::Map<String, serde_json::Value>)) {
    let mut row = |line: &str| {
        let mut row: serde_json::Value = serde_json::from_str(line).unwrap();
        change(row.as_object_mut().unwrap());
        format!("{row}\n")
    };
    rewrite(dir, "answers.jsonl", |text| text.lines().map(&mut row).collect());
}

#[test]
fn the_attention_that_is_told_is_that_of_the_files_and_of_lens() {
    let run = Run::of(Plan::small());
    let [new, old] = [0, 1].map(|at| run.over_cases(|answer| run.mass(answer, run.evidence(answer.0)[at].1)));
    let [by_new, by_old] =
        [0, 1].map(|at| run.over_cases(|answer| run.beside(answer, run.evidence(answer.0)[at].1)));
    let least = [new, old, by_new, by_old].into_iter().fold(1.0, f64::min);
    assert!(least >= 0.00095, "{least}");
    let decimals = if least >= 0.0095 { 1 } else { 2 };
    let share = |mass: f64| format!("{:.decimals$}%", 100.0 * mass);
    let right = run.answers.iter().filter(|(case, probe)| synthetic::correct(*case, probe)).count();
    let [new, old, by_new, by_old] = [new, old, by_new, by_old].map(share);
    let expected = format!(
        "The question pays {new} of its attention to the new session and {old} to the old one (neighbouring sessions: {by_new} and {by_old}; \
         new/old {:.2} by layer; mean over 5 layers, 6 cases, SR and IPA).",
        run.ratio()
    );
    let judged = format!(
        "{right} of 18 questions are answered right by {} (17 judged).",
        JUDGE.strip_prefix("local:").unwrap()
    );
    let newer = run.answers.iter().filter(|answer| run.newer_first(**answer)).count();
    let first = if 2 * newer >= run.answers.len() { ("new", newer) } else { ("old", 17 - newer) };
    let of_two = format!(
        "Of the two, the {} session gets more attention in {} of 17 answers (SR, PR and IPA).",
        first.0, first.1
    );
    let finding = run.finding(None);
    assert_eq!(finding, Finding { sentences: vec![expected, judged, of_two], dots: Vec::new() });

    let lines = finding.lines(60);
    assert!(lines.ends_with(".\n") && lines.lines().all(|line| line.chars().count() <= 60), "{lines}");
    assert_eq!(lines.split_whitespace().collect::<Vec<_>>().join(" "), finding.sentences.join(" "));
}

#[test]
fn a_ratio_over_other_cases_than_the_means_has_its_own_number() {
    let run = Run::of(Plan::small());
    // The last case keeps its evidence alone: no neighbour, so no mean, but a ratio.
    let kept = run.evidence(5).map(|(_, session)| session);
    for probe in PROBES {
        let path = run.dir.path().join(format!("attention/case-005-{probe}.safetensors"));
        synthetic::store(&run.plan, 5, probe, &[kept[1], kept[0]]).save(&path).unwrap();
    }
    let said = &run.finding(None).sentences[0];
    let ratio = format!("; new/old {:.2} by layer (6 cases with both); ", run.ratio());
    let over = "mean over 5 layers, 5 cases, SR and IPA; 1 case left out: no neighbouring session).";
    assert!(said.ends_with(&(ratio + over)), "{said}");

    // The printed table has the number beside each cell that differs.
    let table = palimpsest::lens::in_words(&run.study(), 1000);
    assert!(table.contains("[n]: the number of a cell that has fewer"), "{table}");
    let row = table.lines().find_map(|line| line.strip_prefix("all types SR and IPA ")).unwrap();
    let n = row.split_whitespace().next();
    assert_eq!((n, row.matches("[5]").count()), (Some("6"), 3), "{table}");
}

#[test]
fn controls_that_differ_say_whose_they_are() {
    let run = Run::of(Plan::small());
    let mut causes = run.causes(|_| [0.2, 0.1]);
    for session in causes.answers.iter_mut().flat_map(|answer| &mut answer.sessions) {
        let drop = if session.role.as_deref() == Some("old") { 0.01 } else { 0.02 };
        session.control = Some(Control { drop, kl: 0.0, kl_answer: 0.0 });
    }
    let said = &run.finding(Some(&causes)).sentences[2];
    let whose = "random text of the same length: +0.020 for the new session and +0.010 for the old session.";
    assert!(said.ends_with(whose), "{said}");
}

#[test]
fn a_session_that_is_attended_and_not_used_is_told() {
    let run = Run::of(Plan::small());
    // The session with less attention has the larger effect, but in one answer.
    let exception = run.answers[3];
    let effect = |answer: (usize, &'static str)| {
        let by = 0.01 * answer.0 as f64;
        match run.newer_first(answer) == (answer == exception) {
            true => [0.3 + by, 0.001],
            false => [0.001, 0.3 + by],
        }
    };
    let causes = run.causes(effect);
    let finding = run.finding(Some(&causes));

    let mut by_case: BTreeMap<usize, Vec<[f64; 2]>> = BTreeMap::new();
    run.answers.iter().for_each(|answer| by_case.entry(answer.0).or_default().push(effect(*answer)));
    let over_cases = |at: usize| {
        let of_case = by_case.values().map(|all| mean(&all.iter().map(|both| both[at]).collect::<Vec<_>>()));
        mean(&of_case.collect::<Vec<_>>())
    };
    let effects = format!(
        "Hiding the new session costs the answer {:+.3} nats per token (n = 6 cases, SR, PR and IPA), hiding the old one {:+.3}; random text of the same \
         length: +0.020.",
        over_cases(0),
        over_cases(1)
    );
    let newer = run.answers.iter().filter(|answer| run.newer_first(**answer)).count();
    let used = run.answers.iter().filter(|answer| effect(**answer)[0] > effect(**answer)[1]).count();
    assert!(newer > 9 && used < 8, "the planted attention is mostly to the new session: {newer}, {used}");
    let disagree = format!(
        "Attention and effect disagree: the new session gets more attention in {newer} of 17 answers (SR, PR and IPA), the old one has the larger effect in {}.",
        17 - used
    );
    assert_eq!(finding.sentences[2..], [effects, disagree]);

    let dots = run.answers.iter().flat_map(|&answer| {
        let both = run.evidence(answer.0).into_iter().zip(effect(answer));
        both.map(move |((role, session), effect)| (answer, role, session, effect))
    });
    let dots: Vec<_> = dots.collect();
    assert_eq!(finding.dots.len(), dots.len());
    for (dot, (answer, role, session, effect)) in finding.dots.iter().zip(dots) {
        let attention = run.mass(answer, session);
        assert!((dot.attention - attention).abs() < 1e-9, "{dot:?}: {attention}");
        let expected = Dot {
            case: format!("case-{:03}", answer.0),
            probe: answer.1.to_owned(),
            condition: String::new(),
            span: format!("session[{session}]"),
            role: role.to_owned(),
            attention: dot.attention,
            effect,
        };
        assert_eq!(*dot, expected);
    }
}

#[test]
fn attention_and_effect_that_agree_are_told_with_their_count() {
    let run = Run::of(Plan::small());
    let causes = run.causes(|answer| if run.newer_first(answer) { [0.2, 0.1] } else { [0.1, 0.2] });
    let newer = run.answers.iter().filter(|answer| run.newer_first(**answer)).count();
    let expected = format!(
        "Attention and effect agree in 17 of 17 answers (SR, PR and IPA): the new session gets more attention in {newer} and has the larger effect in {newer}."
    );
    let sentences = run.finding(Some(&causes)).sentences;
    assert_eq!(sentences.last(), Some(&expected), "sentence on the first by attention alone is left out");
    assert_eq!(sentences.len(), 4);
}

#[test]
fn without_verdicts_that_count_it_says_that_nothing_is_known_of_the_answers() {
    let run = Run::of(Plan { verdicts: false, ..Plan::small() });
    let said = &run.finding(None).sentences[1];
    assert_eq!(said, "Whether the answers are right is not known: they are not judged.");

    let run = Run::of(Plan::small());
    rewrite(run.dir.path(), "verdicts.jsonl", |text| text.replace(JUDGE, "local:smollm2-135m"));
    let said = &run.finding(None).sentences[1];
    assert_eq!(said, "Whether the answers are right is not known: smollm2-135m cannot judge.");
}

#[test]
fn answers_cut_at_the_limit_are_told_of_those_that_were_given() {
    let run = Run::of(Plan { verdicts: false, ..Plan::small() });
    let mut left = 3;
    rewrite_rows(run.dir.path(), |row| {
        if left > 0 && row.get("answer").is_some() {
            row.insert("stop".to_owned(), "max_new_tokens".into());
            left -= 1;
        }
    });
    let limit = run.study().conditions[0].run.header_text("/identity/sampling/max_new_tokens").unwrap();
    assert_eq!(
        run.finding(None).sentences[1],
        format!(
            "Whether the answers are right is not known: they are not judged; 3 of 17 answers were cut at the limit of {limit} new tokens."
        )
    );
}

#[test]
fn layers_of_different_kinds_are_never_averaged_together() {
    let hybrid = Run::of(Plan::hybrid());
    let said = &hybrid.finding(None).sentences[0];
    assert!(said.contains("mean over the 2 softmax layers, 6 cases"), "{said}");
    let new = hybrid.over_cases(|answer| hybrid.mass(answer, hybrid.evidence(answer.0)[0].1));
    let told = said.strip_prefix("The question pays ").and_then(|rest| rest.split_once('%')).unwrap().0;
    let rounding = 0.5 * 0.1f64.powi(told.split_once('.').unwrap().1.len() as i32) + 1e-9;
    assert!((told.parse::<f64>().unwrap() - 100.0 * new).abs() <= rounding, "{said}: {new}");

    let linear = Run::of(Plan::linear());
    let said = &linear.finding(None).sentences[0];
    assert!(said.contains("of its implicit |weight| to the new session"), "{said}");
    assert!(said.contains("mean over the 6 linear layers"), "{said}");
}

#[test]
fn a_run_without_attention_says_so_and_how_many_questions_are_answered() {
    let run = Run::of(Plan::small());
    rewrite_rows(run.dir.path(), |row| {
        row.remove("attention");
    });
    std::fs::remove_file(run.dir.path().join("verdicts.jsonl")).unwrap();
    let study = Study::read(&ALL, run.dir.path(), &[], &Options::default()).unwrap();
    assert_eq!(
        Finding::of(&study, None).sentences,
        [
            "No attention was recorded; 17 of 18 questions are answered; whether the answers are right is not known: they are not judged."
        ]
    );
}
