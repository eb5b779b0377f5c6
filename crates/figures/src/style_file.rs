//! Style files: colours and dashes by meaning, words, and the font.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::meaning::Meaning;
use super::style::{Colour, Dash, Stroke};
use super::typeface::{StyleError, Typeface};
use palimpsest_data::ground::text_file;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Style {
    strokes: BTreeMap<Meaning, Stroke>,
    words: Vec<(String, String)>,
    pub typeface: Typeface,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    font: Option<PathBuf>,
    #[serde(default)]
    colours: BTreeMap<Meaning, Colour>,
    #[serde(default)]
    dashes: BTreeMap<Meaning, WrittenDash>,
    #[serde(default)]
    words: BTreeMap<String, String>,
}

impl<'de> Deserialize<'de> for Meaning {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let key = String::deserialize(from)?;
        let known = || Meaning::ALL.map(|(_, key, ..)| key).join(", ");
        Meaning::of_key(&key).ok_or_else(|| {
            serde::de::Error::custom(format!("`{key}` means nothing; the meanings are {}", known()))
        })
    }
}

impl<'de> Deserialize<'de> for Colour {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let digits = text.strip_prefix('#').filter(|digits| digits.len() == 6);
        let number = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let refusal = || format!("`{text}` is no colour; write one as \"#0072b2\"");
        number.map(Colour::of).ok_or_else(|| serde::de::Error::custom(refusal()))
    }
}

/// `None` for a solid line.
#[derive(Deserialize)]
#[serde(try_from = "toml::Value")]
struct WrittenDash(Option<Dash>);

impl TryFrom<toml::Value> for WrittenDash {
    type Error = String;

    fn try_from(written: toml::Value) -> Result<Self, String> {
        let lengths: Option<[i32; 2]> = written.clone().try_into().ok();
        match lengths {
            _ if written.as_str() == Some("solid") => Ok(WrittenDash(None)),
            Some([dash, space]) if [dash, space].iter().all(|length| (1..=40).contains(length)) => {
                Ok(WrittenDash(Some((dash, space))))
            }
            _ => Err(format!(
                "{written} is no dash; write \"solid\", or the lengths of dash and space such as [8, 3], each from 1 to 40"
            )),
        }
    }
}

impl Style {
    /// A style file that says how figures are drawn without one.
    pub const EXAMPLE: &'static str = include_str!("style.toml");

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
        let mut style = Style::default();
        for (meaning, colour) in written.colours {
            style.change(meaning).colour = colour;
        }
        for (meaning, WrittenDash(dash)) in written.dashes {
            style.change(meaning).dash = dash;
        }
        style.words = written.words.into_iter().filter(|(from, _)| !from.is_empty()).collect();
        style.words.sort_by_key(|(from, _)| std::cmp::Reverse(from.len()));
        if let Some(font) = written.font {
            style.typeface = Typeface::read(&path.parent().unwrap_or(Path::new("")).join(font))?;
        }
        Ok(style)
    }

    fn change(&mut self, meaning: Meaning) -> &mut Stroke {
        self.strokes.entry(meaning).or_insert_with(|| meaning.own())
    }

    pub fn stroke(&self, meaning: Meaning) -> Stroke {
        self.strokes.get(&meaning).copied().unwrap_or_else(|| meaning.own())
    }

    /// Replaces the program's words by the style's; whole words only.
    pub fn worded(&self, text: &str) -> String {
        if self.words.is_empty() {
            return text.to_owned();
        }
        let mut said = String::new();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let begins = !said.ends_with(in_word);
            let word = self.words.iter().find_map(|(from, to)| {
                let after = rest.strip_prefix(from.as_str()).filter(|_| begins)?;
                (!after.starts_with(in_word)).then_some((to.as_str(), after))
            });
            let (word, after) = word.unwrap_or_else(|| rest.split_at(first.len_utf8()));
            said += word;
            rest = after;
        }
        said
    }
}

fn in_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '-'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Style, StyleError> {
        Style::parse(text, Path::new("style.toml"))
    }

    #[test]
    fn the_example_is_the_look_without_a_file_and_changes_are_taken() {
        let example = parse(Style::EXAMPLE).unwrap();
        for (meaning, key, ..) in Meaning::ALL {
            assert_eq!(example.stroke(meaning), meaning.own(), "{key}");
            assert_eq!(Style::EXAMPLE.matches(&format!("\n{key} = ")).count(), 2, "{key}");
        }
        let style =
            parse("[colours]\nolder = \"#ABCDEF\"\n[dashes]\nnewer = [3, 1]\nolder = \"solid\"\n").unwrap();
        assert_eq!(style.stroke(Meaning::Old).colour, Colour::of(0xabcdef));
        assert_eq!((style.stroke(Meaning::New).dash, style.stroke(Meaning::Old).dash), (Some((3, 1)), None));
        assert_eq!(style.stroke(Meaning::New).colour, Meaning::New.own().colour);
    }

    #[test]
    fn what_no_style_file_has_is_refused_with_what_is_known() {
        for (text, words) in [
            ("[colours]\nancient = \"#000000\"\n", ["`ancient` means nothing", "newer, older, back"]),
            ("[colours]\nolder = \"red\"\n", ["`red` is no colour", "#0072b2"]),
            ("[dashes]\nolder = [0, 3]\n", ["[0, 3] is no dash", "solid"]),
            ("[dashes]\nolder = \"dotted\"\n", ["\"dotted\" is no dash", "solid"]),
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
