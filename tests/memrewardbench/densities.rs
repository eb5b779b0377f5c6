//! Which constraints of long-form questions are removed, for the formats of the three source data sets.

use palimpsest::case::Case;

use super::parquet_file::Row;
use super::{BENCHMARK, case, row};

/// A long-form pair with this question.
fn pair(question: &str) -> Case {
    case(&Row {
        task: "Long-form_Generation".to_owned(),
        subtask: "Sequential".to_owned(),
        question: question.to_owned(),
        ..row(1)
    })
}

/// The question at a density.
fn at(question: &str, percent: u32) -> String {
    let case = (BENCHMARK.arrange)(&pair(question), &format!("chosen-first-density-{percent}"), 7);
    case.history.segments.iter().find(|segment| segment.index == 0).unwrap().turns[0].content.clone()
}

/// The data set a question is counted under.
fn source(question: &str) -> Option<String> {
    pair(question).probes[0].facets.get("source").cloned()
}

/// Number of the listed parts left at each density.
fn left(question: &str, parts: &[&str]) -> [usize; 5] {
    [0, 25, 50, 75, 100].map(|percent| {
        let thinned = at(question, percent);
        parts.iter().filter(|part| thinned.contains(**part)).count()
    })
}

const LONG_PROC: &str = "[TASK]
In a made-up country every town has one connection to one other town, by bus, train or boat. Give the route from a town to another one.

[IMPORTANT NOTES]
- A connection goes in one direction: who can travel from A to B cannot go back.
- There is one route: begin at the first town and go on until the last one.

[OUTPUT FORMAT]
Write the route between <Route> and </Route>, a line a step:
<Route>
From <TOWN>, take a <VEHICLE> to <TOWN>.
</Route>

[EXAMPLE]
The towns are:
Tarn is a lively city. You can travel from Tarn to Ulm by bus.
Ulm is a lively city. You can travel from Ulm to Vaal by boat.

Now find the route from Tarn to Vaal based on the information above.
<Route>
From Tarn, take a bus to Ulm.
</Route>

[PROBLEM]
The towns are:
Arl is a lively city. You can travel from Arl to Bex by bus.
Bex is a lively city. You can travel from Bex to St. Cloy by train.
St. Cloy is a lively city. You can travel from St. Cloy to Dorn by boat.
Dorn is a lively city. You can travel from Dorn to Arl by bus.

Now find the route from Arl to Dorn based on the information above. Some reminders:
- All connections are one-way. You can go from town to town.
- Follow the format for the route.
";

#[test]
fn known_routes_of_the_problem_go_and_notes_examples_and_reminders_stay() {
    assert_eq!(source(LONG_PROC).as_deref(), Some("LongProc"));
    let routes: Vec<&str> = LONG_PROC.lines().filter(|line| line.contains("You can travel from")).collect();
    let (example, problem) = routes.split_at(2);
    assert_eq!(left(LONG_PROC, problem), [0, 1, 2, 3, 4]);
    assert_eq!(left(LONG_PROC, example), [2; 5]);
    // All other lines stay, and a removed route leaves nothing behind.
    let bare = at(LONG_PROC, 0);
    let rest: Vec<&str> = LONG_PROC.lines().filter(|line| !problem.contains(line)).collect();
    assert_eq!(bare.lines().collect::<Vec<_>>(), rest);
    assert_eq!(at(LONG_PROC, 100), LONG_PROC);
}

#[test]
fn routes_that_stand_in_one_line_are_told_apart() {
    let question = "[PROBLEM]\nThe towns are as follows: Arl is a lively city. You can travel from Arl to Bex by bus. Bex is a lively \
                    city. You can travel from Bex to St. Cloy by boat.\nNow find the route.";
    assert_eq!(at(question, 0), "[PROBLEM]\nThe towns are as follows: \nNow find the route.");
    assert_eq!(left(question, &["Arl to Bex", "Bex to St. Cloy"]), [0, 1, 1, 2, 2]);
}

const DIARY: &str = "Orla is a ferry pilot who writes a diary of every week. Captures:1) Family member birthday: husband (yourself) (birthday on May \
                     03), my sister (birthday on June 14), my child_1 (birthday on July 05), my child_2 (birthday on August 26), my child_3 \
                     (birthday on March 17), 2) Attending a kite festival in Wales in week 20-21.3) Attend a choir every 6 weeks on weekends, \
                     starting from week 3. 4) Weekly updates on the weather and the work.5) Use '##' to separate each weekly entry (e.g. ## \
                     Week 1 (January 1st - January 7th):\n1) I got up. 2) I rowed. 6) I slept.).\n The diary has 52 entries.\n*** started ***";

/// The paper's diary example (figure 21) has nine constraints: at 25% two birthdays are left, at 50% all five, at 75% the next two.
#[test]
fn a_list_inside_an_item_is_several_constraints_and_an_example_is_none() {
    assert_eq!(source(DIARY).as_deref(), Some("LongGenBench"));
    let parts = [
        "husband (yourself) (birthday on May 03)",
        "my sister (birthday on June 14)",
        "my child_1 (birthday on July 05)",
        "my child_2 (birthday on August 26)",
        "my child_3 (birthday on March 17)",
        "2) Attending a kite festival in Wales in week 20-21.",
        "3) Attend a choir every 6 weeks on weekends, starting from week 3.",
        "4) Weekly updates on the weather and the work.",
        "5) Use '##' to separate each weekly entry",
    ];
    assert_eq!(left(DIARY, &parts), [0, 2, 5, 7, 9]);
    // The example goes with its item; the heading of the birthdays with the last of them.
    assert_eq!(
        at(DIARY, 0),
        "Orla is a ferry pilot who writes a diary of every week. Captures:\n The diary has 52 entries.\n*** started ***"
    );
    for (percent, kept) in [(25, 2), (50, 5), (75, 7)] {
        let thinned = at(DIARY, percent);
        let is_kept: Vec<bool> = parts.iter().map(|part| thinned.contains(part)).collect();
        assert_eq!(
            is_kept,
            (0..9).map(|at| at < kept).collect::<Vec<_>>(),
            "the first ones, as printed: {thinned}"
        );
        assert_eq!(thinned.contains("I rowed."), thinned.contains("5) Use"), "{thinned}");
        let birthdays = parts[..5].iter().any(|part| thinned.contains(part));
        assert_eq!(thinned.contains("Family member birthday:"), birthdays, "{thinned}");
        assert!(!thinned.contains(": ,") && !thinned.contains(", ,"), "{thinned}");
    }
}

const TOWER: &str = "Construct a tower of 30 floors. Follow the plan below:
1) Specific floors requirements:
  - Designate Floor 6 for a bakery.
  - Designate Floor 8 for a court of law.
  - Designate Floor 9 for an office.
2) Range floors requirements: Allocate Floors 11 to 17 for a library with archives.
3) Periodic floors requirements: Include a terrace every 5 floors, starting from Floor 3
4) Document each floor by itself.
5) Use '#*#' to separate the floors (e.g. #*# Floor 1:
The lobby (or hall) has these features: 1) Roof: it is of glass. 2) Desk: it is of oak.).
 The document has 30 entries.";

#[test]
fn items_below_an_item_are_the_constraints_and_it_is_their_head() {
    let parts =
        ["Floor 6", "Floor 8", "Floor 9", "Floors 11 to 17", "every 5 floors", "4) Document", "5) Use"];
    assert_eq!(left(TOWER, &parts), [0, 2, 4, 5, 7]);
    assert_eq!(
        at(TOWER, 0),
        "Construct a tower of 30 floors. Follow the plan below:\n The document has 30 entries."
    );
    let bullets = |text: &str| parts[..3].iter().any(|part| text.contains(part));
    for percent in [0, 25, 50, 75, 100] {
        let thinned = at(TOWER, percent);
        assert_eq!(thinned.contains("1) Specific floors"), bullets(&thinned), "{thinned}");
    }
}

/// Questions in LongEval's format: the plan as bullets, with nested lists, as JSON, and as a written list of texts.
const ARTICLES: [(&str, &[&str]); 4] = [
    (
        "Title: How Bees Vote\n\nplease generate a blog based on the given bullet point:\n- The swarm\n  - looks for a home\n  - sends out \
         scouts\n- The dance: angle; length; vigour\n- The vote: 1) a quorum 2) piping 3) the flight",
        &[
            "looks for a home",
            "sends out scouts",
            "angle",
            "length",
            "vigour",
            "a quorum",
            "piping",
            "the flight",
        ],
    ),
    (
        "Title: How Bees Vote\n\nplease generate a blog based on the given bullet points: ```json\n{\n  \"The swarm\": [\n    \"looks for, a \
         home\",\n    \"sends out \\\"scouts\\\"\"\n  ],\n  \"The dance\": {\"angle\": \"the sun\", \"seconds\": 3},\n  \"The vote\": \"a quorum\"\n}\n```\n",
        &["looks for, a home", "scouts", "the sun", "\"seconds\": 3", "\"The vote\": \"a quorum\""],
    ),
    (
        "Title: How Bees Vote \n\n please generate a blog based on the given bullet point: ['- The swarm looks for a home\\n- It sends out \
         scouts', '1. The dance has an angle\\n2. It has a length', 'The vote needs a quorum']",
        &["looks for a home", "sends out scouts", "an angle", "a length", "a quorum"],
    ),
    (
        "Title: How Bees Vote\n\nplease generate a wiki page based on the given bullet point: # The swarm\nThe swarm looks for a home.\nIt \
         sends out scouts.\n## The dance\n* an angle\n* a length",
        &["looks for a home", "sends out scouts", "an angle", "a length"],
    ),
];

#[test]
fn list_items_and_entries_of_json_are_constraints_and_at_0_the_topic_is_left_alone() {
    for (question, parts) in ARTICLES {
        assert_eq!(source(question).as_deref(), Some("LongEval"), "{question}");
        let n = parts.len();
        // Rounds half up.
        let expected = [0, 25, 50, 75, 100].map(|percent| (n * percent + 50) / 100);
        assert_eq!(left(question, parts), expected, "{question}");
        let bare = at(question, 0);
        let topic = question.split(" based on").next().unwrap();
        assert_eq!(bare.trim_end(), topic, "{question}");
        assert_eq!(at(question, 100), question);
    }
}

#[test]
fn json_stays_json_at_every_density() {
    let (question, _) = ARTICLES[1];
    for percent in [25, 50, 75] {
        let text = at(question, percent);
        let block = text.split("```json").nth(1).unwrap().split("```").next().unwrap();
        let value: serde_json::Value =
            serde_json::from_str(block).unwrap_or_else(|error| panic!("{error}: {block}"));
        assert!(value.as_object().is_some_and(|entries| !entries.is_empty()), "{block}");
    }
}

#[test]
fn other_questions_have_no_source_and_keep_what_is_no_list() {
    assert_eq!(source("Write a poem about (1) rain and 2) snow."), None);
    assert_eq!(at("Write a poem about rain.", 0), "Write a poem about rain.");
    let other = "Write a menu.\n\n- soup\n- bread\n\nTake your time.";
    assert_eq!(at(other, 0), "Write a menu.\n\n\nTake your time.");
}
