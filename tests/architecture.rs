//! The rooms of crates/core/src and src/ import each other as docs/architecture.md says.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A module by its path: `["run", "store"]`.
type Module = Vec<String>;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The crates of the house: the first part of their modules' paths, none for the laboratory, and their sources.
const CRATES: [(Option<&str>, &str); 2] = [(Some(CORE), "crates/core/src"), (None, "src")];
const CORE: &str = "palimpsest_core";

/// All files of both crates but tests, with their modules.
fn modules() -> BTreeMap<Module, PathBuf> {
    CRATES.into_iter().flat_map(|(name, sources)| modules_of(name, &root().join(sources))).collect()
}

fn modules_of(name: Option<&str>, sources: &Path) -> BTreeMap<Module, PathBuf> {
    let mut found = BTreeMap::new();
    let mut folders = vec![sources.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let relative = path.strip_prefix(sources).unwrap().with_extension("");
            let mut module: Module =
                relative.iter().map(|part| part.to_string_lossy().into_owned()).collect();
            if module.last().is_some_and(|last| last == "mod") {
                module.pop();
            }
            let is_test = module.iter().any(|part| part == "tests");
            let is_root =
                matches!(module.first().map(String::as_str), Some("lib" | "main")) && module.len() == 1;
            if path.extension().is_some_and(|e| e == "rs") && !is_test && !is_root {
                found.insert(name.map(str::to_owned).into_iter().chain(module).collect(), path);
            }
        }
    }
    found
}

/// What only one benchmark knows, by its folder: its probes, the parts that its segments play. Its name is the folder's.
const OF_BENCHMARKS: [(&str, &[&str]); 5] = [
    ("stale", &["\"SR\"", "\"PR\"", "\"IPA\"", "\"old\"", "\"new\""]),
    ("memrewardbench", &["\"chosen\"", "\"rejected\"", "chosen-first", "\"trajectory\"", "\"[[A]]\""]),
    ("knowme", &["\"T7\"", "\"anchor_start\"", "\"anchor_end\"", "\"inner\"", "\"outer\""]),
    (
        "subtlememory",
        &["\"conflict_early\"", "\"conflict_late\"", "\"oracle\"", "\"perfect\"", "\"nuanced\""],
    ),
    ("dose", &["\"old\"", "\"new\"", "\"lure\"", "\"no-update\"", "\"paraphrase\""]),
];

/// The commands take what users type, such as `export --stale`.
#[test]
fn nothing_outside_a_benchmarks_folder_knows_it() {
    for (module, path) in modules() {
        for (benchmark, words) in OF_BENCHMARKS {
            // The rooms that build its histories, tell its effects and draw them.
            let of_rooms =
                benchmark == "dose" && matches!(module[0].as_str(), "construct" | "dose" | "figures");
            let outside = !matches!(module[0].as_str(), "cli")
                && !of_rooms
                && module.get(..2) != Some(&["benchmarks".into(), benchmark.into()]);
            if !outside {
                continue;
            }
            for line in code(&path).lines() {
                // Where benchmarks are registered.
                let registers = [format!("mod {benchmark};"), format!("{benchmark}::")];
                if module == ["benchmarks"] && registers.iter().any(|part| line.contains(part)) {
                    continue;
                }
                // Memories and values that are out of date are called stale, too: the word alone is no benchmark's name.
                let names = match benchmark {
                    "stale" => vec!["stale::", "\"stale\""],
                    other => vec![other],
                };
                let is_protocol = line.contains("Op::Stale")
                    || module.get(..2) == Some(&["benchmarks".into(), "dose".into()])
                    || module
                        .get(..2)
                        .is_some_and(|room| room == ["memory", "system"] || room == ["memory", "cupmem"]);
                let named = !is_protocol && names.iter().any(|name| line.contains(name));
                // Two benchmarks may call a part the same.
                let own = |word: &str| {
                    OF_BENCHMARKS.iter().any(|(other, theirs)| {
                        module.get(..2) == Some(&["benchmarks".into(), (*other).into()])
                            && theirs.contains(&word)
                    })
                };
                let word = words.iter().find(|word| line.contains(**word) && !own(word));
                assert!(!named && word.is_none(), "{}: {line}", path.display());
            }
        }
    }
}

/// The code of a file, without comments and without its own tests.
fn code(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    let mut kept = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let inline = line.trim() == "#[cfg(test)]";
        if inline {
            let next = lines.next().unwrap_or_default();
            if next.contains("mod ") && next.trim_end().ends_with('{') {
                // Tests stand at the end of a file.
                break;
            }
            continue;
        }
        let line = line.split("//").next().unwrap_or_default();
        kept.push_str(line);
        kept.push('\n');
    }
    kept
}

/// What a `use` list names, each as a path: `a::{b, c::{d, e}}` is three.
fn expand(prefix: &[String], rest: &str, out: &mut Vec<Module>) {
    let mut depth = 0;
    let mut start = 0;
    let mut parts = Vec::new();
    for (at, c) in rest.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&rest[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&rest[start..]);
    for part in parts.into_iter().map(str::trim).filter(|part| !part.is_empty()) {
        let (head, list) = match part.split_once('{') {
            Some((head, list)) => (head, Some(list.trim_end().trim_end_matches('}'))),
            None => (part, None),
        };
        let mut path = prefix.to_vec();
        let words = head.split("::").map(|word| word.split_whitespace().next().unwrap_or_default());
        path.extend(words.filter(|word| !word.is_empty()).map(str::to_owned));
        match list {
            Some(list) => expand(&path, list, out),
            None => out.push(path),
        }
    }
}

/// The room of a module: a folder or file at the root of its crate.
fn room(module: &Module) -> String {
    match module.split_first() {
        Some((first, rest)) if first == CORE => format!("core/{}", rest[0]),
        _ => module[0].clone(),
    }
}

/// All paths of a file that begin with `crate`, `super` or the core's name, from the root of all crates.
fn paths(module: &Module, code: &str) -> Vec<Module> {
    let mut found = Vec::new();
    for word in ["crate::", "super::", "palimpsest_core::"] {
        for (at, _) in code.match_indices(word) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                continue;
            }
            let rest = &code[at..];
            // To the end of the path, or of the list that it ends with.
            let end =
                rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).unwrap_or(rest.len());
            let mut text = rest[..end].to_owned();
            if rest[end..].starts_with('{') {
                let mut depth = 0;
                let close = rest[end..].char_indices().find(|(_, c)| {
                    depth += i32::from(*c == '{') - i32::from(*c == '}');
                    depth == 0
                });
                text = rest[..end + close.map_or(0, |(at, _)| at + 1)].to_owned();
            }
            let mut all = Vec::new();
            expand(&[], &text, &mut all);
            for path in all {
                let mut base: Module = match path[0].as_str() {
                    "crate" if module[0] != CORE => Vec::new(),
                    "crate" | CORE => vec![CORE.to_owned()],
                    _ => module[..module.len().saturating_sub(1)].to_vec(),
                };
                for part in &path[1..] {
                    if part == "super" {
                        base.pop();
                    } else {
                        base.push(part.clone());
                    }
                }
                found.push(base);
            }
        }
    }
    found
}

/// Which files each file imports.
fn imports() -> BTreeMap<Module, BTreeSet<Module>> {
    let modules = modules();
    let mut all = BTreeMap::new();
    for (module, path) in &modules {
        let mut to = BTreeSet::new();
        for mut path in paths(module, &code(path)) {
            while !path.is_empty() && !modules.contains_key(&path) {
                path.pop();
            }
            if !path.is_empty() && path != *module {
                to.insert(path);
            }
        }
        all.insert(module.clone(), to);
    }
    all
}

#[test]
fn rooms_import_what_the_drawing_says_and_only_what_is_above_them() {
    let drawing = std::fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let rows: Vec<(String, BTreeSet<String>)> = drawing
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let rooms = cells[3].split(',').map(str::trim).filter(|room| !room.is_empty());
            (cells[1].trim_matches('`').to_owned(), rooms.map(str::to_owned).collect())
        })
        .collect();
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (module, imported) in imports() {
        let own = room(&module);
        let rooms = found.entry(own.clone()).or_default();
        rooms.extend(imported.iter().map(room).filter(|room| *room != own));
    }
    let drawn: BTreeSet<&String> = rows.iter().map(|(room, _)| room).collect();
    assert_eq!(drawn, found.keys().collect(), "the rooms of docs/architecture.md and those of the crates");
    let mut above = BTreeSet::new();
    for (room, allowed) in &rows {
        assert_eq!(
            allowed, &found[room],
            "what docs/architecture.md lets `{room}` import, and what it imports"
        );
        let upward: Vec<&String> = allowed.difference(&above).collect::<Vec<_>>();
        assert!(upward.is_empty(), "`{room}` imports {upward:?}, which are not above it");
        above.insert(room.clone());
    }
}

#[test]
fn no_two_files_import_each_other() {
    let imports = imports();
    let mut mutual = Vec::new();
    for (a, to) in &imports {
        let both = |b: &Module| a < b && imports.get(b).is_some_and(|back| back.contains(a));
        let beside = |b: &Module| !a.starts_with(b) && !b.starts_with(a);
        mutual.extend(to.iter().filter(|b| both(b) && beside(b)).map(|b| format!("{a:?} and {b:?}")));
    }
    mutual.extend(parents_and_children());
    assert_eq!(mutual, Vec::<String>::new());
}

/// Parents that use a child whose file uses what the parent itself defines. What the parent re-exports is not its own.
fn parents_and_children() -> Vec<String> {
    let modules = modules();
    let code: BTreeMap<&Module, String> = modules.iter().map(|(m, path)| (m, code(path))).collect();
    let mut found = Vec::new();
    for child in modules.keys() {
        let Some((name, parent)) = child.split_last() else { continue };
        let Some(of_parent) = code.get(&parent.to_vec()) else { continue };
        if !uses_child(of_parent, name) {
            continue;
        }
        let own = defined(of_parent);
        let used: BTreeSet<String> = paths(child, &code[child])
            .into_iter()
            .filter(|path| path.starts_with(parent))
            .filter_map(|path| path.get(parent.len()).cloned())
            .filter(|item| own.contains(item))
            .collect();
        if !used.is_empty() {
            found.push(format!("{parent:?} uses {name}, which uses its {used:?}"));
        }
    }
    found
}

/// Whether a parent's code names `child::`, other than to re-export from it.
fn uses_child(code: &str, child: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let start_of = |at: usize| code[..at].rfind([';', '{', '}']).map_or(0, |end| end + 1);
    let of_path = |at: usize| !code[..at].ends_with(is_name) || code[..at].ends_with("self::");
    (code.match_indices(&format!("{child}::"))).filter(|&(at, _)| of_path(at)).any(|(at, _)| {
        let statement = code[start_of(at)..at].lines().map(str::trim);
        let first = statement.into_iter().find(|line| !line.is_empty() && !line.starts_with("#["));
        !first.is_some_and(|line| line.starts_with("pub"))
    })
}

/// The names of the items that a file defines at its top level, submodules apart.
fn defined(code: &str) -> BTreeSet<String> {
    let item = |line: &str| {
        let words: Vec<&str> = line.split(|c: char| !(c.is_alphanumeric() || c == '_')).collect();
        let at = words
            .iter()
            .position(|word| ["fn", "struct", "enum", "trait", "const", "static", "type"].contains(word))?;
        words[at + 1..].iter().find(|word| !["fn", "mut", ""].contains(word)).map(|word| (*word).to_owned())
    };
    let is_top = |line: &&str| !line.starts_with([' ', '}', ')', '#', 'u']) || line.starts_with("unsafe");
    code.lines().filter(is_top).filter_map(item).collect()
}

#[test]
fn the_reader_of_imports_sees_lists_paths_and_no_comments() {
    let code = "use crate::a::{b, c::{d, e as f}};\nlet x = super::g::h(crate::i::J::new());\n";
    let module = vec!["m".to_owned(), "n".to_owned()];
    let found: BTreeSet<String> = paths(&module, code).iter().map(|path| path.join("::")).collect();
    let expected = ["a::b", "a::c::d", "a::c::e", "i::J::new", "m::g::h"];
    assert_eq!(found, expected.map(str::to_owned).into());
    let parent =
        "mod c;\npub use c::Shown;\npub const fn item() {}\nstruct Own;\nimpl Own {\n    fn inner() {}\n}\n";
    assert_eq!(defined(parent), ["Own", "item"].map(str::to_owned).into());
    assert!(
        !uses_child(parent, "c") && uses_child("fn f() { c::g() }", "c") && !uses_child("b::c::g()", "c")
    );
    assert!(!uses_child("#[cfg(test)]\npub use c::d;\n", "c"));
}
