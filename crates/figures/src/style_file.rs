//! Style files: colours and dashes by meaning, words, and the font.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::meaning::{Looks, Meaning};
use super::style::{Colour, Dash};
use super::style_error::StyleError;
use super::typeface::Typeface;
use palimpsest_data::ground::text_file;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Style {
    looks: BTreeMap<Meaning, Looks>,
    words: Vec<(String, String)>,
    pub typeface: Typeface,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    font: Option<PathBuf>,
    #[serde(default)]
    colours: BTreeMap<String, String>,
    #[serde(default)]
    dashes: BTreeMap<String, WrittenDash>,
    #[serde(default)]
    words: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum WrittenDash {
    Named(String),
    Lengths(Vec<i32>),
}

impl Style {
    /// Reads a style file; the font path is relative to it.
    pub fn read(path: &Path) -> Result<Self, StyleError> {
        let text =
            text_file::read(path).map_err(|source| StyleError::Read { path: path.to_owned(), source })?;
        Style::parse(&text, path)
    }

    fn parse(text: &str, path: &Path) -> Result<Self, StyleError> {
        let written: Written = toml::from_str(text).map_err(|e| StyleError::Toml {
            path: path.to_owned(),
            reason: e.to_string().trim_end().to_owned(),
        })?;
        let entry = |table: &'static str, key: &str, problem: String| StyleError::Entry {
            path: path.to_owned(),
            table,
            key: key.to_owned(),
            problem,
        };
        let meaning = |table: &'static str, key: &str| {
            let known = Meaning::ALL.map(|(_, key, ..)| key).join(", ");
            Meaning::of_key(key)
                .ok_or_else(|| entry(table, key, format!(" means nothing; the meanings are {known}")))
        };
        let mut style = Style::default();
        for (key, text) in &written.colours {
            let meaning = meaning("colours", key)?;
            let colour = colour(text).ok_or_else(|| {
                entry("colours", key, format!(" is `{text}`; write a colour as \"#0072b2\""))
            })?;
            style.change(meaning).colour = colour;
        }
        for (key, dash) in &written.dashes {
            let meaning = meaning("dashes", key)?;
            style.change(meaning).dash = match dash {
                WrittenDash::Named(solid) if solid == "solid" => None,
                WrittenDash::Lengths(lengths) => Some(
                    lengths_of(lengths)
                        .ok_or_else(|| entry("dashes", key, format!(" is {lengths:?}; {DASHES}")))?,
                ),
                WrittenDash::Named(other) => {
                    return Err(entry("dashes", key, format!(" is `{other}`; {DASHES}")));
                }
            };
        }
        style.words = written.words.into_iter().filter(|(from, _)| !from.is_empty()).collect();
        style.words.sort_by_key(|(from, _)| std::cmp::Reverse(from.len()));
        if let Some(font) = written.font {
            style.typeface = Typeface::read(&path.parent().unwrap_or(Path::new("")).join(font))?;
        }
        Ok(style)
    }

    fn change(&mut self, meaning: Meaning) -> &mut Looks {
        self.looks.entry(meaning).or_insert_with(|| meaning.own())
    }

    pub fn looks(&self, meaning: Meaning) -> Looks {
        self.looks.get(&meaning).copied().unwrap_or_else(|| meaning.own())
    }

    /// Replaces the program's words by the style's; whole words only.
    pub fn worded(&self, text: &str) -> String {
        if self.words.is_empty() {
            return text.to_owned();
        }
        let mut said = String::new();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let begins = !said.chars().next_back().is_some_and(in_word);
            let word = self.words.iter().find(|(from, _)| {
                let after = rest.strip_prefix(from.as_str());
                begins && after.is_some_and(|after| !after.chars().next().is_some_and(in_word))
            });
            let taken = match word {
                Some((from, to)) => {
                    said += to;
                    from.len()
                }
                None => {
                    said.push(first);
                    first.len_utf8()
                }
            };
            (_, rest) = rest.split_at(taken);
        }
        said
    }

    pub fn example() -> String {
        let mut text = "# A style file: palimpsest figures RUN --style style.toml\n\
                        # Every line may be left out; what stands here is how figures are drawn without one.\n\n\
                        # A TrueType or OpenType file, relative to this one; the figures' own is Arimo.\n\
                        # font = \"MyFont-Regular.ttf\"\n\n[colours]\n"
            .to_owned();
        for (_, key, about, Looks { colour: Colour(r, g, b), .. }) in Meaning::ALL {
            text += &format!("{key} = \"#{r:02x}{g:02x}{b:02x}\" # {about}\n");
        }
        text +=
            "\n# Lengths of dash and space in pixels of which words are 12 high, or \"solid\".\n[dashes]\n";
        for (_, key, _, looks) in Meaning::ALL {
            text += &match looks.dash {
                None => format!("{key} = \"solid\"\n"),
                Some((dash, space)) => format!("{key} = [{dash}, {space}]\n"),
            };
        }
        text += "\n# Words in pictures, titles and captions in place of the program's own; whole words only.\n[words]\n\
                 # old = \"outdated\"\n# \"query to new\" = \"question to update\"\n";
        text
    }
}

const DASHES: &str = "write \"solid\", or the lengths of dash and space such as [8, 3], each from 1 to 40";

fn in_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '-'
}

fn lengths_of(lengths: &[i32]) -> Option<Dash> {
    match *lengths {
        [dash, space] if (1..=40).contains(&dash) && (1..=40).contains(&space) => Some((dash, space)),
        _ => None,
    }
}

fn colour(text: &str) -> Option<Colour> {
    let digits = text.strip_prefix('#').filter(|digits| digits.len() == 6 && digits.is_ascii())?;
    let number = u32::from_str_radix(digits, 16).ok()?;
    let [_, r, g, b] = number.to_be_bytes();
    Some(Colour(r, g, b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Style, StyleError> {
        Style::parse(text, Path::new("style.toml"))
    }

    #[test]
    fn the_example_is_the_look_without_a_file_and_changes_are_taken() {
        let example = parse(&Style::example()).unwrap();
        for (meaning, key, ..) in Meaning::ALL {
            assert_eq!(example.looks(meaning), meaning.own(), "{key}");
        }
        let style =
            parse("[colours]\nolder = \"#ABCDEF\"\n[dashes]\nnewer = [3, 1]\nolder = \"solid\"\n").unwrap();
        assert_eq!(style.looks(Meaning::Old).colour, Colour(0xab, 0xcd, 0xef));
        assert_eq!((style.looks(Meaning::New).dash, style.looks(Meaning::Old).dash), (Some((3, 1)), None));
        assert_eq!(style.looks(Meaning::New).colour, Meaning::New.own().colour);
    }

    #[test]
    fn what_no_style_file_has_is_refused_with_what_is_known() {
        for (text, words) in [
            ("[colours]\nancient = \"#000000\"\n", ["colours.ancient", "newer, older, back"]),
            ("[colours]\nolder = \"red\"\n", ["colours.older is `red`", "#0072b2"]),
            ("[dashes]\nolder = [0, 3]\n", ["dashes.older is [0, 3]", "solid"]),
            ("[dashes]\nolder = \"dotted\"\n", ["dashes.older is `dotted`", "solid"]),
            ("colors = 3\n", ["unknown field `colors`", "`colours`"]),
            ("font = \"none.ttf\"\n", ["none.ttf", "No such file"]),
        ] {
            let said = parse(text).unwrap_err().to_string();
            assert!(words.iter().all(|word| said.contains(word)), "{said}");
        }
    }

    #[test]
    fn whole_words_are_replaced_and_the_longest_first() {
        let style =
            parse("[words]\nold = \"outdated\"\n\"query to old\" = \"question to past\"\nquery = \"q\"\n");
        let style = style.unwrap();
        for (text, said) in [
            ("old", "outdated"),
            ("query to old", "question to past"),
            ("query to new, old, older, Qwen-old", "q to new, outdated, older, Qwen-old"),
            ("old old", "outdated outdated"),
            ("", ""),
        ] {
            assert_eq!(style.worded(text), said);
        }
        assert_eq!(Style::default().worded("old"), "old");
    }
}
