//! Labels, edits and agreement, by the maker and by the count.

use std::collections::BTreeMap;

use palimpsest::build::pool::Pool;
use palimpsest::build::rating::Review;
use palimpsest::build::review::{Form, agreement};
use palimpsest::build::table::{Made, Maker, maker};
use palimpsest::build::{Row, RowError, Setting, Spec};
use palimpsest_core::text::CharsPerToken;
use serde_json::{Value, json};

fn row(id: &str) -> Row {
    let fields = json!({"old": "I bike.", "type": "T1", "probes": {"dim1": "Does she bike?"}});
    Row { id: id.to_owned(), parents: Vec::new(), fields: fields.as_object().cloned().unwrap_or_default() }
}

fn form() -> Value {
    json!({
        "edit": ["old", "probes.dim1"], "keep": ["accept", "weak-reject"], "drop": ["reject"], "share": 0.5,
        "flip": {"label": "wrong-type", "field": "type", "values": ["T1", "T2"]},
    })
}

/// The outcome of the row `a`.
fn reviewed(reviews: &[Review]) -> Result<Made, RowError> {
    let Some(Maker::All(review)) = maker("stale", "review") else { panic!() };
    let spec: Spec = toml::from_str("kind = \"stale\"\nlicence = \"MIT\"\nstage = []").unwrap();
    let Value::Object(with) = form() else { panic!() };
    let (pool, count) = (Pool::default(), CharsPerToken::new(4.0).unwrap());
    let embed = |_: &[&str]| Err("no embedder".to_owned());
    let setting =
        Setting { spec: &spec, stage: "look", with, pool: &pool, count: &count, embed: &embed, reviews };
    review(&setting, &[row("a")]).map(|mut made| made.remove(0))
}

fn said(id: &str, rater: &str, label: &str) -> Review {
    let form: Form = serde_json::from_value(form()).unwrap();
    let of = form.digest(&row(id));
    let [row, rater, label] = [id, rater, label].map(str::to_owned);
    Review { row, of, rater, label, edits: BTreeMap::new(), comment: String::new(), settles: false }
}

#[test]
fn labels_drop_keep_edit_and_exchange_the_type() {
    let of = |reviews: &[Review]| reviewed(reviews).unwrap();
    assert_eq!(of(&[said("a", "x", "reject")]), Err(("a".to_owned(), "review: reject".to_owned())));
    assert_eq!(of(&[said("a", "x", "wrong-type")]).unwrap().text("type"), Ok("T2"));
    let mut edit = said("a", "x", "weak-reject");
    edit.edits = [("probes.dim1".to_owned(), "Is a bike hers?".to_owned())].into();
    let edited = of(&[edit.clone()]).unwrap();
    assert_eq!(edited.text("probes.dim1"), Ok("Is a bike hers?"));
    assert_eq!(edited.text("review.edits.0.before"), Ok("Does she bike?"));
    edit.edits = [("nothing".to_owned(), String::new())].into();
    assert!(matches!(reviewed(&[edit]), Err(RowError::Fault(_))));
    // Without a review a row stays as it is.
    assert_eq!(of(&[]).unwrap().fields, row("a").fields);
    // And so with a review of another text, which is counted.
    let old = of(&[Review { of: "0".repeat(16), ..said("a", "x", "reject") }]).unwrap();
    assert_eq!(old.number("old_reviews"), Ok(1));
    assert_eq!(old.without(&["old_reviews"]).fields, row("a").fields);
}

#[test]
fn raters_who_disagree_decide_nothing_until_it_is_settled() {
    let mut reviews = vec![said("a", "x", "accept"), said("a", "y", "reject")];
    let of = |reviews: &[Review]| reviewed(reviews).unwrap();
    assert_eq!(of(&reviews), Err(("a".to_owned(), "raters disagree".to_owned())));
    reviews.push(Review { settles: true, ..said("a", "z", "accept") });
    assert_eq!(of(&reviews).unwrap().text("review.label"), Ok("accept"));
    reviews.push(Review { settles: true, ..said("a", "w", "reject") });
    assert_eq!(of(&reviews), Err(("a".to_owned(), "raters disagree".to_owned())));
}

#[test]
fn kappa_is_that_of_the_rows_with_two_raters() {
    let rows: Vec<Row> = ["a", "b", "c", "d", "e"].map(row).into();
    let labels = [
        ("a", "accept", "accept"),
        ("b", "accept", "reject"),
        ("c", "reject", "reject"),
        ("d", "accept", "accept"),
    ];
    let mut reviews: Vec<Review> =
        labels.iter().flat_map(|(id, one, other)| [said(id, "x", one), said(id, "y", other)]).collect();
    reviews[0].edits = [("old".to_owned(), "I ride.".to_owned())].into();
    let form: Form = serde_json::from_value(form()).unwrap();
    let found = agreement(&form, &rows, &reviews);
    assert_eq!((found.rows, found.reviewed, found.edited, found.twice, found.same), (5, 4, 1, 4, 3));
    // Observed 3/4; by chance 3/4 * 1/2 + 1/4 * 1/2.
    assert!((found.kappa.unwrap() - (0.75 - 0.5) / (1.0 - 0.5)).abs() < 1e-12);
    // Raters are told apart by name, in whatever order their files came.
    assert_eq!(found.labels[0], ("accept".to_owned(), 3));
    reviews.swap(2, 3);
    assert_eq!(agreement(&form, &rows, &reviews), found);
    reviews.reverse();
    assert_eq!(agreement(&form, &rows, &reviews), found);
    reviews.push(Review { of: String::new(), ..said("e", "x", "accept") });
    let with_old = agreement(&form, &rows, &reviews);
    assert_eq!((with_old.old, with_old.reviewed), (1, 4));
}
