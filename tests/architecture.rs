//! Rooms of crates/core/src and src/ import each other only as ARCHITECTURE.md says.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A module path: `["run", "store"]`.
type Module = Vec<String>;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Crate name in paths, name in ARCHITECTURE.md, source folder. A crate without a slash in its rooms is one room.
const CRATES: [(&str, &str, &str); 7] = [
    ("palimpsest_core", "core", "crates/core/src"),
    ("palimpsest_data", "data", "crates/data/src"),
    ("palimpsest_run", "run", "crates/run/src"),
    ("palimpsest_analysis", "analysis", "crates/analysis/src"),
    ("palimpsest_figures", "figures", "crates/figures/src"),
    ("palimpsest_serve", "serve", "crates/serve/src"),
    ("palimpsest", "palimpsest", "src"),
];

/// All non-test source files, by module.
fn modules() -> BTreeMap<Module, PathBuf> {
    CRATES.into_iter().flat_map(|(name, _, sources)| modules_of(name, &root().join(sources))).collect()
}

fn modules_of(name: &str, sources: &Path) -> BTreeMap<Module, PathBuf> {
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
            let is_program = module == ["main"];
            if module == ["lib"] {
                module.pop();
            }
            if path.extension().is_some_and(|e| e == "rs") && !is_test && !is_program {
                found.insert(std::iter::once(name.to_owned()).chain(module).collect(), path);
            }
        }
    }
    found
}

/// Words that belong to one benchmark, by its folder: probe names and segment roles. The benchmark is named like its folder.
const OF_BENCHMARKS: [(&str, &[&str]); 6] = [
    ("stale", &["\"SR\"", "\"PR\"", "\"IPA\"", "\"old\"", "\"new\""]),
    ("memrewardbench", &["\"chosen\"", "\"rejected\"", "chosen-first", "\"trajectory\"", "\"[[A]]\""]),
    ("knowme", &["\"T7\"", "\"anchor_start\"", "\"anchor_end\"", "\"inner\"", "\"outer\""]),
    (
        "subtlememory",
        &["\"conflict_early\"", "\"conflict_late\"", "\"oracle\"", "\"perfect\"", "\"nuanced\""],
    ),
    ("dose", &["\"old\"", "\"new\"", "\"lure\"", "\"no-update\"", "\"paraphrase\""]),
    ("own", &["\"old\"", "\"new\"", "\"old only\"", "\"new only\""]),
];

/// Commands are exempt: they take what users type, such as `export --stale`.
#[test]
fn nothing_outside_a_benchmarks_folder_knows_it() {
    for (module, path) in modules() {
        for (benchmark, words) in OF_BENCHMARKS {
            // Rooms that build dose's histories, report its effects and draw them.
            let of_rooms = benchmark == "dose"
                && matches!(
                    room(&module).as_str(),
                    "data/construct" | "analysis/dose" | "analysis/evict" | "figures"
                );
            let outside = module[0] != "palimpsest"
                && !of_rooms
                && !is_in(&module, &["palimpsest_data", "benchmarks", benchmark])
                && !is_in(&module, &["palimpsest_data", "build", benchmark]);
            if !outside {
                continue;
            }
            for line in code(&path).lines() {
                // Registration of benchmarks and rooms.
                let registers = [format!("mod {benchmark};"), format!("{benchmark}::")];
                let of_registry = module.len() == 1
                    || module == ["palimpsest_data", "benchmarks"]
                    || module == ["palimpsest_data", "build"]
                    || module == ["palimpsest_data", "build", "table"];
                if of_registry && registers.iter().any(|part| line.contains(part)) {
                    continue;
                }
                // Outdated memories and values are called stale too, so the word alone does not name the benchmark.
                // `own` is a word of every day.
                let names = match benchmark {
                    "stale" => vec!["stale::", "\"stale\""],
                    "own" => vec!["own::OWN", "\"own\""],
                    other => vec![other],
                };
                let is_protocol = line.contains("Op::Stale")
                    || is_in(&module, &["palimpsest_data", "benchmarks", "dose"])
                    || is_in(&module, &["palimpsest_run", "memory", "system"])
                    || is_in(&module, &["palimpsest_run", "memory", "cupmem"]);
                let named = !is_protocol && names.iter().any(|name| line.contains(name));
                // Two benchmarks may share a word.
                let own = |word: &str| {
                    OF_BENCHMARKS.iter().any(|(other, theirs)| {
                        let of_other = ["benchmarks", "build"]
                            .iter()
                            .any(|room| is_in(&module, &["palimpsest_data", room, other]));
                        of_other && theirs.contains(&word)
                    })
                };
                // Builds reject rows of every kind.
                let of_builds =
                    |word: &str| is_in(&module, &["palimpsest_run", "build"]) && word == "\"rejected\"";
                // A policy of eviction has the name of a setting.
                let of_policies =
                    |word: &str| is_in(&module, &["palimpsest_core", "evict"]) && word == "\"oracle\"";
                let apart = |word: &str| own(word) || of_builds(word) || of_policies(word);
                let word = words.iter().find(|word| line.contains(**word) && !apart(word));
                assert!(!named && word.is_none(), "{}: {line}", path.display());
            }
        }
    }
}

fn is_in(module: &Module, folder: &[&str]) -> bool {
    module.len() >= folder.len() && module.iter().zip(folder).all(|(part, name)| part == name)
}

/// Code of a file, without comments and unit tests.
fn code(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    let mut kept = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let inline = line.trim() == "#[cfg(test)]";
        if inline {
            let next = lines.next().unwrap_or_default();
            if next.contains("mod ") && next.trim_end().ends_with('{') {
                // Unit tests are last in a file.
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

/// Paths named by a `use` list: `a::{b, c::{d, e}}` is three.
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

/// Room of a module: a folder or file at the crate root, as `crate/room`, or the crate if it is one room.
fn room(module: &Module) -> String {
    let name = short(&module[0]);
    match module.get(1) {
        Some(first) if !["figures", "palimpsest"].contains(&name) => format!("{name}/{first}"),
        _ => name.to_owned(),
    }
}

fn short(name: &str) -> &'static str {
    CRATES.iter().find(|(long, ..)| *long == name).map(|(_, short, _)| *short).unwrap()
}

/// All absolute paths in a file that begin with `crate`, `super` or a crate name.
fn paths(module: &Module, code: &str) -> Vec<Module> {
    let mut found = Vec::new();
    let names = CRATES.iter().map(|(name, ..)| format!("{name}::"));
    for word in ["crate::", "super::"].into_iter().map(str::to_owned).chain(names) {
        for (at, _) in code.match_indices(&word) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                continue;
            }
            let rest = &code[at..];
            // Up to the end of the path, or of its list.
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
                    "crate" => vec![module[0].clone()],
                    name if CRATES.iter().any(|(known, ..)| *known == name) => vec![name.to_owned()],
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

/// Files imported by each file. A re-exported name counts for the file that defines it; a folder that uses its child's items imports the
/// child; a child imports its folder only for items defined in the folder's own file.
fn imports() -> BTreeMap<Module, BTreeSet<Module>> {
    let modules = modules();
    let code: BTreeMap<&Module, String> = modules.iter().map(|(m, path)| (m, code(path))).collect();
    let exports: BTreeMap<&Module, BTreeMap<String, Module>> =
        code.iter().map(|(module, code)| (*module, reexports(module, code))).collect();
    let mut all = BTreeMap::new();
    for (module, text) in &code {
        let mut to = BTreeSet::new();
        for mut path in paths(module, text) {
            let mut file = file_of(&modules, &path);
            // Follows re-exports of re-exports; four levels are enough here.
            for _ in 0..4 {
                let Some(definer) = path.get(file.len()).and_then(|item| exports.get(&file)?.get(item))
                else {
                    break;
                };
                path = [definer.as_slice(), &path[file.len() + 1..]].concat();
                file = file_of(&modules, &path);
            }
            let above = module.starts_with(&file);
            if !above || path.get(file.len()).is_some_and(|item| defined(&code[&file]).contains(item)) {
                to.insert(file);
            }
        }
        let children =
            modules.keys().filter(|child| child.len() == module.len() + 1 && child.starts_with(module));
        to.extend(children.filter(|child| uses_child(text, &child[module.len()])).cloned());
        to.remove(*module);
        all.insert((*module).clone(), to);
    }
    all
}

/// The longest prefix of a path that is a file; at least the crate.
fn file_of(modules: &BTreeMap<Module, PathBuf>, path: &[String]) -> Module {
    let mut path = path.to_vec();
    while path.len() > 1 && !modules.contains_key(&path) {
        path.pop();
    }
    path
}

/// Re-exported names of a file, with their source paths.
fn reexports(module: &Module, code: &str) -> BTreeMap<String, Module> {
    let mut found = BTreeMap::new();
    for path in code.split(';').filter_map(|part| part.rsplit_once("pub use ").map(|(_, path)| path.trim())) {
        let own = !CRATES.iter().any(|(name, ..)| path.starts_with(&format!("{name}::")));
        let mut all = Vec::new();
        expand(if own { module } else { &[] }, path, &mut all);
        found.extend(all.into_iter().filter_map(|path| Some((path.last()?.clone(), path))));
    }
    found
}

/// Top-level items of a file, except submodules.
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
fn rooms_import_what_the_drawing_says_and_only_what_is_above_them() {
    let drawing = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
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
    for (module, imported) in imports().into_iter().filter(|(module, _)| module.len() > 1) {
        let (own, name) = (room(&module), short(&module[0]));
        let rooms = found.entry(own.clone()).or_default();
        // Rooms of its own crate, and other crates as a whole. The facade counts as every crate.
        rooms.extend(imported.iter().filter(|to| to.len() > 1 && to[0] != "palimpsest").filter_map(|to| {
            let (to_room, to_crate) = (room(to), short(&to[0]));
            (to_room != own).then(|| if to_crate == name { to_room } else { to_crate.to_owned() })
        }));
    }
    found.remove("palimpsest");
    let drawn: BTreeMap<String, BTreeSet<String>> = rows.iter().cloned().collect();
    assert_eq!(drawn, found, "what rooms import by ARCHITECTURE.md, and what they import");
    let mut above = BTreeSet::new();
    for (room, allowed) in &rows {
        let upward: Vec<&String> = allowed.difference(&above).collect();
        assert!(upward.is_empty(), "`{room}` imports {upward:?}, which are not above it");
        above.insert(room.clone());
        above.extend(room.split_once('/').map(|(name, _)| name.to_owned()));
    }
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let imports = imports();
    let reached = |from: &Module| {
        let mut seen = BTreeSet::new();
        let mut next: Vec<&Module> = vec![from];
        while let Some(module) = next.pop() {
            next.extend(imports.get(module).into_iter().flatten().filter(|to| seen.insert((*to).clone())));
        }
        seen
    };
    let all: BTreeMap<&Module, BTreeSet<Module>> =
        imports.keys().map(|module| (module, reached(module))).collect();
    let circles: BTreeSet<Vec<String>> = all
        .iter()
        .filter(|(module, reached)| reached.contains(**module))
        .map(|(module, reached)| {
            reached
                .iter()
                .filter(|other| all[other].contains(*module))
                .map(|other| other.join("::"))
                .collect()
        })
        .collect();
    assert_eq!(circles, BTreeSet::new());
}

/// Does the parent use `child::` other than in a re-export?
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

#[test]
fn the_reader_of_imports_sees_lists_paths_and_no_comments() {
    let code = "use crate::a::{b, c::{d, e as f}};\nlet x = super::g::h(crate::i::J::new());\n";
    let module = ["palimpsest_run", "m", "n"].map(str::to_owned).to_vec();
    let found: BTreeSet<String> = paths(&module, code).iter().map(|path| path.join("::")).collect();
    let expected =
        ["a::b", "a::c::d", "a::c::e", "i::J::new", "m::g::h"].map(|path| format!("palimpsest_run::{path}"));
    assert_eq!(found, expected.into());
    let parent = "mod c;\npub use c::{Shown, d::Deep};\npub const fn item() {}\nstruct Own;\nimpl Own {\n    fn inner() {}\n}\n";
    assert_eq!(defined(parent), ["Own", "item"].map(str::to_owned).into());
    let exported = reexports(&module, parent);
    assert_eq!(exported["Shown"].join("::"), "palimpsest_run::m::n::c::Shown");
    assert_eq!(exported["Deep"].join("::"), "palimpsest_run::m::n::c::d::Deep");
    assert!(
        !uses_child(parent, "c") && uses_child("fn f() { c::g() }", "c") && !uses_child("b::c::g()", "c")
    );
    assert!(!uses_child("#[cfg(test)]\npub use c::d;\n", "c"));
}
