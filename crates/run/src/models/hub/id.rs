//! Name of a hub repository in `--model`: `owner/name`, optionally with `@REVISION` and `:FILE.gguf`.

use std::fmt;
use std::path::Path;

use palimpsest_core::model::is_gguf;

use super::layout::is_file_name;

const MAIN: &str = "main";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::models) struct HubId {
    pub repo: String,
    /// Branch, tag or commit.
    pub revision: String,
    pub file: Option<String>,
}

impl HubId {
    /// `None` for anything else, such as most paths. Each part may become part of a path and of a URL.
    pub(in crate::models) fn parse(text: &str) -> Option<Self> {
        let (head, file) = text.split_once(':').map_or((text, None), |(head, file)| (head, Some(file)));
        let (repo, revision) = head.split_once('@').unwrap_or((head, MAIN));
        let (owner, name) = repo.split_once('/')?;
        let of_file = [".gguf", ".json", ".safetensors"].iter().any(|ending| name.ends_with(ending));
        let is_id = is_word(owner) && is_word(name) && !of_file && revision.split('/').all(is_word);
        (is_id && file.is_none_or(is_gguf_in_repository)).then(|| HubId {
            repo: repo.to_owned(),
            revision: revision.to_owned(),
            file: file.map(str::to_owned),
        })
    }

    /// As it is typed, with this revision.
    pub(in crate::models) fn at(&self, revision: &str) -> String {
        let file = self.file.as_ref().map_or_else(String::new, |file| format!(":{file}"));
        format!("{}@{revision}{file}", self.repo)
    }
}

/// Without the revision: the name in headers, tables and answers.
impl fmt::Display for HubId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repo)?;
        self.file.iter().try_for_each(|file| write!(f, ":{file}"))
    }
}

fn is_word(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        && !text.contains("..")
}

pub(super) fn is_gguf_in_repository(file: &str) -> bool {
    is_gguf(Path::new(file)) && is_file_name(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_an_owner_and_a_name_and_what_is_a_path_is_none() {
        let parsed =
            |text: &str| HubId::parse(text).map(|id| (id.to_string(), id.revision.clone(), id.at("c0ffee")));
        let of =
            |name: &str, revision: &str, pinned: &str| Some((name.into(), revision.into(), pinned.into()));
        assert_eq!(parsed("Qwen/Qwen3-8B"), of("Qwen/Qwen3-8B", "main", "Qwen/Qwen3-8B@c0ffee"));
        assert_eq!(parsed("o/n@v1.0"), of("o/n", "v1.0", "o/n@c0ffee"));
        assert_eq!(parsed("o/n@refs/pr/3:a/b.gguf"), of("o/n:a/b.gguf", "refs/pr/3", "o/n@c0ffee:a/b.gguf"));
        for path in [
            "name",
            "./o/n",
            "../n",
            "o/",
            "/o",
            "a/b/c",
            "~/n",
            "o/n.gguf",
            "configs/x.json",
            "o/..",
            "o/n@",
            "o/n@a/../b",
            "o/n@-x",
            "o/n:",
            "o/n:x.bin",
            "o/n:../x.gguf",
            "o/n:/x.gguf",
            "C:\\o/n",
            "http://h/v1#m",
            "o n/x",
        ] {
            assert_eq!(HubId::parse(path), None, "{path}");
        }
    }
}
