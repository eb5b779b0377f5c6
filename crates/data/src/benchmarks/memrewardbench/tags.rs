//! Removes the tags of A-Mem's notes (MemoryRewardBench, section 5.4, appendix D.5): lines whose first word is `Tags` or `Tag` and a colon,
//! with the list that they open, and inline dictionary entries `'tags': [...]`. The definition is ours.

pub(super) fn untagged(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut inside = false;
    for line in text.split_inclusive('\n') {
        if inside {
            inside = !line.contains(']');
            continue;
        }
        if let Some(rest) = after_tags(line) {
            inside = rest.contains('[') && !rest.contains(']');
            continue;
        }
        kept.push_str(&without_entries(line));
    }
    kept
}

fn after_tags(line: &str) -> Option<&str> {
    const AROUND: [char; 9] = ['*', '_', '-', '•', '"', '\'', '`', '#', ' '];
    let word = line.trim_start().trim_start_matches(AROUND);
    let lower = word.get(..4)?.to_ascii_lowercase();
    let rest = match (lower.as_str(), word.get(..3)) {
        ("tags", _) => word.get(4..)?,
        (_, Some(three)) if three.eq_ignore_ascii_case("tag") => word.get(3..)?,
        _ => return None,
    };
    rest.trim_start_matches(AROUND).strip_prefix(':')
}

fn without_entries(line: &str) -> String {
    let mut text = line.to_owned();
    while let Some((start, after)) = entry(&text) {
        let value = text.get(after..).unwrap_or_default();
        let ends = match value.trim_start().starts_with('[') {
            true => value.find(']').map(|at| at + 1),
            false => value.find([',', '}']),
        };
        // An unclosed list ends with the line.
        let mut end = after + ends.unwrap_or(value.trim_end().len());
        let before = text.get(..start).unwrap_or_default().trim_end();
        let start = match before.strip_suffix(',') {
            Some(before) => before.len(),
            None => {
                let rest = text.get(end..).unwrap_or_default();
                if let Some(after) = rest.trim_start().strip_prefix(',') {
                    end = text.len() - after.trim_start().len();
                }
                start
            }
        };
        text.replace_range(start..end, "");
    }
    text
}

fn entry(text: &str) -> Option<(usize, usize)> {
    let lower = text.to_ascii_lowercase();
    let of = |quoted: &str| {
        let start = lower.find(quoted)?;
        let rest = lower.get(start + quoted.len()..)?;
        let colon = rest.trim_start().strip_prefix(':')?;
        Some((start, lower.len() - colon.len()))
    };
    of("'tags'").or_else(|| of("\"tags\""))
}

#[cfg(test)]
mod tests {
    use super::untagged;

    #[test]
    fn lines_of_tags_and_entries_in_a_dictionary_go_and_nothing_else_does() {
        let text = "[note_1]\nContext: tags are handy\nKeywords: ['tags']\nTags: ['a', 'b']\n\n- **Tags:** x, y\nTag: z\nlast";
        assert_eq!(untagged(text), "[note_1]\nContext: tags are handy\nKeywords: ['tags']\n\nlast");
        assert_eq!(untagged("{'id': 1, 'tags': ['a', 'b'], 'to': 2}\n"), "{'id': 1, 'to': 2}\n");
        assert_eq!(untagged("{\"tags\": [\"a\"], \"to\": 2}"), "{\"to\": 2}");
        assert_eq!(untagged("{'id': 1, 'tags': []}"), "{'id': 1}");
        assert_eq!(untagged("{'tags': none}"), "{}");
        assert_eq!(untagged("\"tags\": [\n  \"a\",\n  \"b\"\n],\n\"to\": 2"), "\"to\": 2");
        assert_eq!(untagged("Stage: tagged\nétage: x\nTa"), "Stage: tagged\nétage: x\nTa");
    }
}
