//! Documentation pages: commands and flags exist, and lines fit a phone screen.

use std::collections::BTreeMap;
use std::path::Path;

use super::palimpsest;

/// Pages whose code blocks are commands, and the maximum line length.
const PAGES: [(&str, usize); 2] = [("commands.md", 72), ("stale.md", 72)];
/// Commands with subcommands.
const NESTED: [&str; 3] = ["model", "data", "agree"];

#[test]
fn every_command_of_the_tour_exists_with_its_flags_and_fits_a_phone() {
    let mut helps: BTreeMap<Vec<String>, String> = BTreeMap::new();
    for (page, longest) in PAGES {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(page);
        let text = std::fs::read_to_string(path).unwrap();
        let blocks: Vec<&str> = text.split("```").skip(1).step_by(2).collect();
        assert!(!blocks.is_empty(), "{page}");
        for line in blocks.iter().flat_map(|block| block.lines()) {
            assert!(line.chars().count() <= longest, "{page}: {line}");
        }
        let commands = blocks.iter().map(|block| block.replace("\\\n", " ")).collect::<Vec<_>>().join("\n");
        for command in commands.lines().filter_map(|line| line.strip_prefix("palimpsest ")) {
            let words: Vec<&str> = command.split_whitespace().collect();
            let depth = if NESTED.contains(&words[0]) { 2 } else { 1 };
            let called: Vec<String> = words[..depth].iter().map(|word| (*word).to_owned()).collect();
            let help = helps.entry(called.clone()).or_insert_with(|| {
                let helped = palimpsest(called.iter().map(String::as_str).chain(["--help"]));
                assert_eq!(helped.code, Some(0), "{page}: {command}: {}", helped.err);
                helped.out
            });
            for flag in words.iter().filter(|word| word.starts_with("--")) {
                assert!(help.contains(flag), "{page}: {command}: no {flag}");
            }
        }
    }
}
