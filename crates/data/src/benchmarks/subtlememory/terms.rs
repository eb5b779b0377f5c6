//! Names of relations, subtypes, roles, facets and notes, with aliases.

pub(super) const TITLE: &str = "SubtleMemory";

/// Facet: relation between the memories (SubtleMemory, section 2.1).
pub(super) const RELATION: &str = "relation";
pub(super) const SUBTYPE: &str = "subtype";
/// Facet: the set of memories; only nuanced sets have several questions.
pub(super) const INSTANCE: &str = "instance";
/// Facet: about the user or something else.
pub(super) const SOURCE: &str = "source";
pub(super) const TOPIC: &str = "topic";

pub(super) const TARGET: &str = "target";
/// Role: the only target that contains the right answer, if unique.
pub(super) const SELECTED: &str = "selected";
pub(super) const CONFLICT_EARLY: &str = "conflict_early";
pub(super) const CONFLICT_LATE: &str = "conflict_late";

pub(super) const CORRECT_ANSWERS: &str = "correct_answers";
pub(super) const INCORRECT_ANSWERS: &str = "incorrect_answers";
pub(super) const FACTS: &str = "facts";
pub(super) const CASE: &str = "case";
/// Judge note: the user's profile, for questions about the user only.
pub(super) const PERSONA: &str = "persona";

pub(super) const OF_USER: &str = "user-related";

pub(super) const COMPLEMENTARY: &str = "complementary";
/// Each memory holds at its own time or occasion.
pub(super) const NUANCED: &str = "nuanced";
pub(super) const CONTRADICTORY: &str = "contradictory";
pub(super) const RELATIONS: [&str; 3] = [COMPLEMENTARY, NUANCED, CONTRADICTORY];

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Subtype {
    pub(super) name: &'static str,
    pub(super) relation: &'static str,
    /// Aliases in lower case with `_`: the paper's, the files' and the authors' schema's.
    also: &'static [&'static str],
}

/// One memory decides, others are background. In the authors' schema and judge rules, but not in the paper or released files.
pub(super) const SINGLE_EVIDENCE: &str = "single_evidence";

pub(super) const SUBTYPES: [Subtype; 6] = [
    Subtype { name: "multi_evidence", relation: COMPLEMENTARY, also: &["k>1", "k_gt_1", "multievidence"] },
    Subtype { name: "any_one", relation: COMPLEMENTARY, also: &["any_one_of_n", "anyone"] },
    Subtype { name: SINGLE_EVIDENCE, relation: COMPLEMENTARY, also: &["k=1", "k_eq_1", "singleevidence"] },
    Subtype { name: "temporal", relation: NUANCED, also: &[] },
    Subtype { name: "contextual", relation: NUANCED, also: &["context"] },
    Subtype {
        name: CONTRADICTORY,
        relation: CONTRADICTORY,
        also: &["contradiction", "a_user_vs_user", "b_user_vs_non_user", "c_non_user_vs_non_user"],
    },
];

fn plain(name: &str) -> String {
    name.trim().to_lowercase().replace(['-', ' '], "_")
}

pub(super) fn relation(name: &str) -> Option<&'static str> {
    let name = plain(name);
    RELATIONS.into_iter().find(|relation| *relation == name)
}

/// By name or alias, in any case.
pub(super) fn subtype(name: &str) -> Option<&'static Subtype> {
    let name = plain(name);
    SUBTYPES.iter().find(|subtype| subtype.name == name || subtype.also.contains(&name.as_str()))
}

pub(super) fn one_of<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    match names.split_last() {
        Some((last, before)) if !before.is_empty() => format!("{} or {last}", before.join(", ")),
        _ => names.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_a_subtype_is_known_in_any_case_and_no_other_one() {
        for (canonical, names) in [
            ("multi_evidence", ["multi_evidence", "Multi-evidence", "K>1"].as_slice()),
            ("single_evidence", &["K=1"]),
            ("any_one", &["any_one", "Any-one"]),
            ("temporal", &["Temporal"]),
            ("contextual", &["Context", "CONTEXTUAL"]),
            (
                "contradictory",
                &["contradictory", "a_user_vs_user", "b_user_vs_non_user", "c_non_user_vs_non_user"],
            ),
        ] {
            for name in names {
                assert_eq!(subtype(name).map(|s| s.name), Some(canonical), "{name}");
            }
        }
        for name in ["", "k", "temporary", "nuanced", "any"] {
            assert_eq!(subtype(name), None, "{name}");
        }
        assert_eq!(relation(" Nuanced "), Some("nuanced"));
        assert_eq!(relation("conflict"), None);
        assert_eq!(one_of(["a", "b", "c"]), "a, b or c");
    }
}
