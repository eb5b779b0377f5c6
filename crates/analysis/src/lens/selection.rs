//! Selected conditions of a run, and file name prefixes for them.
//!
//! Different selections never share a file: names start with the selected conditions, except for the selection of all non-repeating ones.

use std::path::Path;

use super::LensError;
use palimpsest_core::digest::sha256;
use palimpsest_run::runs::condition::{label, stored};
use palimpsest_run::runs::error::RunError;
use palimpsest_run::runs::header::Identity;

/// Maximum bytes of joined names; file systems limit name length.
const LONGEST: usize = 100;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    pub names: Vec<String>,
    /// Conditions that repeat another's prompts; their attention is not measured.
    pub unmeasured: Vec<String>,
    /// True if the run has conditions besides the plain one.
    pub several: bool,
    pub prefix: String,
}

impl Selection {
    pub fn of(identity: &Identity, path: &Path, asked: &[String]) -> Result<Self, LensError> {
        let known = identity.condition_names();
        if let Some(unknown) = asked.iter().find(|name| !known.contains(&stored(name))) {
            let known = known.iter().map(|name| label(name)).collect::<Vec<_>>().join(", ");
            let (dir, name) = (path.to_owned(), unknown.clone());
            return Err(RunError::UnknownCondition { dir, name, known }.into());
        }
        let bases = bases(identity);
        let wanted = |name: &&str| match asked {
            [] => bases.contains(name),
            _ => asked.iter().any(|asked| stored(asked) == *name),
        };
        let names: Vec<&str> = known.iter().copied().filter(wanted).collect();
        let several = known != [""];
        let prefix = match several && (names != bases || bases.len() == 1) {
            true => format!("{}-", joined(&names)),
            false => String::new(),
        };
        let names = names.into_iter().map(str::to_owned).collect();
        Ok(Selection { names, unmeasured: Vec::new(), several, prefix })
    }

    /// All conditions, without a prefix. Repetitions are not measured: the same prompt has the same attention.
    pub fn all(identity: &Identity, path: &Path) -> Result<Self, LensError> {
        let bases = Selection::of(identity, path, &[])?;
        let names: Vec<String> = identity.condition_names().into_iter().map(str::to_owned).collect();
        let unmeasured = names.iter().filter(|name| !bases.names.contains(name)).cloned().collect();
        Ok(Selection { names, unmeasured, prefix: String::new(), ..bases })
    }
}

fn bases(identity: &Identity) -> Vec<&str> {
    let all = identity.conditions_or_plain().iter();
    all.filter(|condition| condition.base() == condition.name).map(|condition| &*condition.name).collect()
}

/// Joined names: `plain+knockout-query-old`. Long ones become a count and a digest.
pub fn joined<N: AsRef<str>>(names: &[N]) -> String {
    let all = names.iter().map(|name| label(name.as_ref())).collect::<Vec<_>>().join("+");
    match all.len() {
        ..=LONGEST => all,
        _ => format!("{}-conditions-{:.8}", names.len(), sha256(&all)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn identity(conditions: serde_json::Value) -> Identity {
        let identity = json!({
            "benchmark": "duel", "dataset": { "name": "pairs", "digest": "d" }, "model": { "name": "tiny", "digest": "d" },
            "dtype": "f32", "prompts": null, "sampling": null, "context": { "tokens": 512, "policy": "full" }, "seed": 0,
            "only": null, "limit": null, "attention": true, "version": "0.2.0", "conditions": conditions,
        });
        serde_json::from_value(identity).unwrap()
    }

    fn of(identity: &Identity, asked: &[&str]) -> Selection {
        let asked: Vec<String> = asked.iter().map(|name| (*name).to_owned()).collect();
        Selection::of(identity, Path::new("run"), &asked).unwrap()
    }

    #[test]
    fn no_two_selections_of_a_run_have_the_same_prefix() {
        let run = identity(json!([
            { "name": "" }, { "name": "repeat-2", "repetition": 1 }, { "name": "knockout-query-old", "knockout": "query->old" },
        ]));
        let prefix = |asked: &[&str]| of(&run, asked).prefix;
        assert_eq!(of(&run, &[]).names, ["", "knockout-query-old"]);
        assert_eq!(prefix(&[]), "");
        assert_eq!(prefix(&["knockout-query-old", "plain"]), "");
        assert_eq!(prefix(&["plain"]), "plain-");
        assert_eq!(prefix(&["repeat-2"]), "repeat-2-");
        assert_eq!(prefix(&["repeat-2", "plain"]), "plain+repeat-2-");
        let every = prefix(&["plain", "repeat-2", "knockout-query-old"]);
        assert_eq!(every, "plain+repeat-2+knockout-query-old-");
        let all = Selection::all(&run, Path::new("run")).unwrap();
        assert_eq!(
            (all.names.len(), &all.unmeasured[..], &*all.prefix),
            (3, &["repeat-2".to_owned()][..], "")
        );

        let unknown = Selection::of(&run, Path::new("run"), &["oracle".to_owned()]).unwrap_err().to_string();
        assert!(unknown.contains("`oracle`") && unknown.contains("plain, repeat-2"), "{unknown}");
    }

    #[test]
    fn a_run_of_the_plain_condition_alone_names_none_and_one_that_repeats_it_does() {
        let plain = identity(json!([]));
        assert_eq!((of(&plain, &[]).prefix, of(&plain, &["plain"]).several), (String::new(), false));
        let repeated = identity(json!([{ "name": "" }, { "name": "repeat-2", "repetition": 1 }]));
        assert_eq!(of(&repeated, &[]), of(&repeated, &["plain"]));
        assert_eq!(of(&repeated, &[]).prefix, "plain-");
    }

    #[test]
    fn many_names_become_a_digest_of_them() {
        let names: Vec<String> = (0..40).map(|at| format!("setting-{at}")).collect();
        let [all, some] = [&names[..], &names[1..]].map(joined);
        assert!(
            all.starts_with("40-conditions-") && all.len() < 30 && all[14..] != some[14..],
            "{all} {some}"
        );
    }
}
