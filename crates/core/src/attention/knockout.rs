//! Attention knock-outs: rows of one span cannot attend to the keys of another at some layers (Geva et al., arXiv 2304.14767).
//!
//! A [`Knockout`] names spans. Resolved against a prompt's spans and a model's layers it becomes [`LayerHoles`], which a cache holds and
//! each layer's [`super::Site`] gets its part of. Invalid knock-outs are rejected here, before anything is computed.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::site::hides_all;
use super::{Hole, Holes, Kept};
use crate::span::Span;

/// A blocked path between spans. Text form: `ROWS->KEYS`, `ROWS->KEYS@8..16` for layers 8 to 15, `only ` in front for the rows of
/// ROWS alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Knockout {
    /// Label or role of the query spans.
    pub rows: String,
    /// Label or role of the key spans.
    pub keys: String,
    /// Layers, counting linear ones; `None` for all.
    pub layers: Option<Range<usize>>,
    /// Block only the rows of `rows`; else all positions from its first row on, generated tokens included.
    pub only: bool,
}

/// Hidden keys per layer. Clones share them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LayerHoles(Arc<[Holes]>);

/// Layer properties that knock-outs depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerKind {
    /// Softmax attention.
    Softmax {
        /// Sliding window: visible keys per row, itself included.
        window: Option<usize>,
        /// The layer has sinks, so a row may have all keys hidden.
        sinks: bool,
        /// An indexer chooses the keys that a row sees.
        indexed: bool,
    },
    /// Linear attention: has no keys to hide.
    Linear,
}

/// An invalid knock-out.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct KnockoutError(String);

impl LayerKind {
    /// True for a sliding-window layer.
    pub fn is_windowed(&self) -> bool {
        matches!(self, LayerKind::Softmax { window: Some(_), .. })
    }

    /// True for a layer that leaves keys out: by a sliding window or an indexer.
    pub fn chooses(&self) -> bool {
        matches!(self, LayerKind::Softmax { window: Some(_), .. } | LayerKind::Softmax { indexed: true, .. })
    }

    fn shows(&self, rows: &Range<usize>, keys: &Range<usize>) -> bool {
        let LayerKind::Softmax { window, .. } = *self else { return false };
        // Nearest pair: the last key that any row reaches, and the first row at or after it.
        let Some(key) = keys.end.min(rows.end).checked_sub(1).filter(|key| keys.contains(key)) else {
            return false;
        };
        let row = rows.start.max(key);
        rows.contains(&row) && window.is_none_or(|window| row - key < window)
    }
}

impl LayerHoles {
    /// `holes` at the softmax layers among `layers`.
    pub fn at_softmax(layers: &Range<usize>, kinds: &[LayerKind], holes: Vec<Hole>) -> Self {
        let holes = Holes::new(holes);
        let of = |(layer, kind): (usize, &LayerKind)| match kind {
            LayerKind::Softmax { .. } if layers.contains(&layer) => holes.clone(),
            _ => Holes::default(),
        };
        LayerHoles(kinds.iter().enumerate().map(of).collect())
    }

    /// `shown` at the layers that choose keys ([`Holes::of_shown`]).
    pub fn at_choices(kinds: &[LayerKind], shown: Vec<Hole>) -> Self {
        let shown = Holes::of_shown(shown);
        let of = |kind: &LayerKind| if kind.chooses() { shown.clone() } else { Holes::default() };
        LayerHoles(kinds.iter().map(of).collect())
    }

    /// The keys that an eviction kept, by layer; `None` for layers that keep all.
    pub fn of_kept(layers: Vec<Option<Arc<Kept>>>) -> Self {
        LayerHoles(layers.into_iter().map(|kept| kept.map(Holes::of_kept).unwrap_or_default()).collect())
    }

    /// Hidden keys of a layer.
    pub fn of(&self, layer: usize) -> Holes {
        self.0.get(layer).cloned().unwrap_or_default()
    }

    /// Union of both.
    #[must_use]
    pub fn joined(&self, other: &LayerHoles) -> Self {
        let both = |layer: usize| match (self.of(layer), other.of(layer)) {
            (one, none) if none.is_empty() => one,
            (none, one) if none.is_empty() => one,
            (one, other) => one.joined(&other),
        };
        LayerHoles((0..self.0.len().max(other.0.len())).map(both).collect())
    }

    /// The first row with hidden keys.
    pub fn first_row(&self) -> Option<usize> {
        self.0.iter().filter_map(Holes::first_row).min()
    }

    /// True if nothing is hidden.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Holes::is_empty)
    }

    /// Restricted to rows before `end`.
    pub(crate) fn before_row(&self, end: usize) -> Self {
        LayerHoles(self.0.iter().map(|holes| holes.before_row(end)).collect())
    }

    /// Resolves `knockouts` against a prompt of `tokens` tokens with these spans and a model with these layers. Returns an error if a
    /// knock-out is invalid or hides all keys of a row.
    pub fn new(
        knockouts: &[Knockout],
        spans: &[Span],
        tokens: usize,
        kinds: &[LayerKind],
    ) -> Result<Self, KnockoutError> {
        Self::of_rows(knockouts, spans, tokens, kinds, |knockout| knockout.rows(spans))
    }

    /// As `new`, but blocks exactly the rows of the named span, as in tokens files. Rows that reach the prompt's end include
    /// the generated tokens, unless the knock-out is `only`. `last` names the last position; `answer` and `each` name the positions that
    /// predict generated tokens.
    pub fn exact(
        knockouts: &[Knockout],
        spans: &[Span],
        tokens: usize,
        kinds: &[LayerKind],
    ) -> Result<Self, KnockoutError> {
        Self::of_rows(knockouts, spans, tokens, kinds, |knockout| knockout.exact_rows(spans, tokens))
    }

    fn of_rows(
        knockouts: &[Knockout],
        spans: &[Span],
        tokens: usize,
        kinds: &[LayerKind],
        rows_of: impl Fn(&Knockout) -> Result<Vec<Range<usize>>, KnockoutError>,
    ) -> Result<Self, KnockoutError> {
        let mut by_layer: Vec<Vec<Hole>> = vec![Vec::new(); kinds.len()];
        for knockout in knockouts {
            let layers = knockout.layers(kinds)?;
            let (rows, keys) = (rows_of(knockout)?, knockout.spans(&knockout.keys, spans)?);
            let pairs = || rows.iter().flat_map(|rows| keys.iter().map(move |keys| (rows, keys)));
            if !kinds[layers.clone()].iter().any(|kind| pairs().any(|(rows, keys)| kind.shows(rows, keys))) {
                let windowed = kinds[layers].iter().any(LayerKind::is_windowed);
                let windowed = if windowed { " and within its layer's sliding window" } else { "" };
                let Knockout { rows, keys, .. } = knockout;
                return Err(KnockoutError(format!(
                    "knock-out `{knockout}` blocks nothing: a row sees only keys at or before its own position{windowed}, and none of \
                     `{keys}` is there for a row of `{rows}`; name rows that come after the keys"
                )));
            }
            for holes in &mut by_layer[layers] {
                holes.extend(pairs().map(|(rows, keys)| Hole { rows: rows.clone(), keys: keys.clone() }));
            }
        }
        let holes = LayerHoles(by_layer.into_iter().map(Holes::new).collect());
        holes.check(tokens, kinds)?;
        Ok(holes)
    }

    /// Returns an error if one of the first `tokens` rows sees nothing.
    fn check(&self, tokens: usize, kinds: &[LayerKind]) -> Result<(), KnockoutError> {
        let mut done: Vec<(Option<usize>, &Holes)> = Vec::new();
        for (layer, (holes, kind)) in self.0.iter().zip(kinds).enumerate() {
            let LayerKind::Softmax { window, sinks: false, .. } = *kind else { continue };
            // Layers with equal windows and holes are checked once.
            if holes.is_empty() || done.contains(&(window, holes)) {
                continue;
            }
            // A row that sees itself is never empty.
            for row in holes.iter().flat_map(|hole| {
                hole.rows.start.max(hole.keys.start)..hole.rows.end.min(hole.keys.end).min(tokens)
            }) {
                let start = window.map_or(0, |window| (row + 1).saturating_sub(window));
                if hides_all(&holes.from_row(row), &(start..row + 1)) {
                    let windowed = if start > 0 { " (the layer has a sliding window)" } else { "" };
                    return Err(KnockoutError(format!(
                        "row {row} would see nothing at layer {layer}: all of its keys {start}..{} are hidden from it{windowed}; leave \
                         the row some of them, or leave the layer out",
                        row + 1
                    )));
                }
            }
            done.push((window, holes));
        }
        Ok(())
    }
}

impl Knockout {
    /// Identifier of letters, digits and single hyphens: `knockout-query-old-8-16`.
    pub fn name(&self) -> String {
        let only = if self.only { "only-" } else { "" };
        let layers = self.layers.as_ref().map(|l| format!("-{}-{}", l.start, l.end)).unwrap_or_default();
        let text = format!("knockout-{only}{}-{}{layers}", self.rows, self.keys);
        let parts = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|part| !part.is_empty());
        parts.collect::<Vec<_>>().join("-")
    }

    /// Which of its rows and keys no span of tokens has as label or role.
    pub fn missing(&self, spans: &[Span]) -> Vec<&String> {
        let is_named =
            |name: &str| spans.iter().any(|span| !span.is_empty() && (span.label == name || span.is(name)));
        [&self.rows, &self.keys].into_iter().filter(|name| !is_named(name)).collect()
    }

    /// Returns an error if layers are out of range or linear.
    pub fn check_layers(&self, kinds: &[LayerKind]) -> Result<(), KnockoutError> {
        self.layers(kinds).map(drop)
    }

    fn layers(&self, kinds: &[LayerKind]) -> Result<Range<usize>, KnockoutError> {
        let layers = self.layers.clone().unwrap_or(0..kinds.len());
        if layers.is_empty() || layers.end > kinds.len() {
            let (start, end, all) = (layers.start, layers.end, kinds.len());
            let which = match start {
                _ if layers.is_empty() => format!("layers {start}..{end} are none"),
                start if start < all => format!("layers {start}..{end} go beyond the model's 0..{all}"),
                start => format!("layers {start}..{end} are not among the model's 0..{all}"),
            };
            let (first, last) = (if start < all { start } else { 0 }, all);
            return Err(KnockoutError(format!(
                "knock-out `{self}`: {which}; give START..END, such as {first}..{last}"
            )));
        }
        let linear = |layer: &usize| kinds[*layer] == LayerKind::Linear;
        if let Some(layer) = layers.clone().find(linear) {
            let at = (layers.clone().chain(0..kinds.len())).find(|layer| !linear(layer));
            let softmax = at.map_or("none of this model".to_owned(), |at| {
                let end = (at..kinds.len()).find(linear).unwrap_or(kinds.len());
                format!("@{at}..{end}")
            });
            return Err(KnockoutError(format!(
                "knock-out `{self}`: layer {layer} is a linear-attention layer, which keeps no keys that could be hidden; name layers \
                 without one, such as {softmax}"
            )));
        }
        Ok(layers)
    }

    fn rows(&self, spans: &[Span]) -> Result<Vec<Range<usize>>, KnockoutError> {
        let rows = self.spans(&self.rows, spans)?;
        Ok(match self.only {
            true => rows,
            false => {
                rows.iter().map(|rows| rows.start).min().map(|first| first..usize::MAX).into_iter().collect()
            }
        })
    }

    /// The named rows; those that reach the end of a prompt of `tokens` tokens include the generated ones.
    fn exact_rows(&self, spans: &[Span], tokens: usize) -> Result<Vec<Range<usize>>, KnockoutError> {
        let last = tokens.saturating_sub(1);
        let of_tokens = |rows: Range<usize>| std::iter::once(rows).collect();
        let mut rows: Vec<Range<usize>> = match self.rows.as_str() {
            "answer" | "each" => of_tokens(last..usize::MAX),
            "last" => of_tokens(last..tokens),
            name => self.spans(name, spans)?,
        };
        for rows in rows.iter_mut().filter(|rows| !self.only && rows.end >= tokens) {
            rows.end = usize::MAX;
        }
        Ok(rows)
    }

    /// Ranges of the spans with this label, or else this role.
    fn spans(&self, name: &str, spans: &[Span]) -> Result<Vec<Range<usize>>, KnockoutError> {
        let by = |of: &dyn Fn(&Span) -> bool| -> Vec<Range<usize>> {
            spans.iter().filter(|span| of(span) && !span.is_empty()).map(Span::range).collect()
        };
        let found = [by(&|span| span.label == name), by(&|span| span.is(name))];
        match found.into_iter().find(|found| !found.is_empty()) {
            Some(found) => Ok(found),
            None => {
                let names = spans.iter().flat_map(|span| [Some(span.label.as_str()), span.role.as_deref()]);
                let mut known: Vec<&str> = names.flatten().collect();
                known.sort_unstable();
                known.dedup();
                Err(KnockoutError(format!(
                    "knock-out `{self}`: no span is called `{name}` or has that role; there are {}",
                    known.join(", ")
                )))
            }
        }
    }
}

impl fmt::Display for Knockout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let only = if self.only { "only " } else { "" };
        write!(f, "{only}{}->{}", self.rows, self.keys)?;
        self.layers.iter().try_for_each(|layers| write!(f, "@{}..{}", layers.start, layers.end))
    }
}

impl FromStr for Knockout {
    type Err = KnockoutError;

    fn from_str(given: &str) -> Result<Self, KnockoutError> {
        let wrong = |why| {
            KnockoutError(format!(
                "knock-out `{given}`: {why}; write ROWS->KEYS, such as query->old, with @8..16 behind it for layers 8 to 15 and `only ` \
                 before it for the rows of ROWS alone"
            ))
        };
        let text = given.trim();
        let (only, text) = match text.strip_prefix("only ") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (rows, rest) = text.split_once("->").ok_or_else(|| wrong("it has no `->`"))?;
        let (keys, layers) = match rest.split_once('@') {
            Some((keys, layers)) => (keys, Some(layers)),
            None => (rest, None),
        };
        let (rows, keys) = (rows.trim(), keys.trim());
        if rows.is_empty() || keys.is_empty() {
            return Err(wrong("a name is missing"));
        }
        let layers = layers.map(|layers| {
            let (start, end) = layers.split_once("..").ok_or_else(|| wrong("layers are not A..B"))?;
            let number = |text: &str| text.trim().parse().map_err(|_| wrong("a layer is not a number"));
            let layers = number(start)?..number(end)?;
            if layers.is_empty() {
                Err(wrong("the layers hold none: the end is left out"))
            } else {
                Ok(layers)
            }
        });
        Ok(Knockout { rows: rows.to_owned(), keys: keys.to_owned(), layers: layers.transpose()?, only })
    }
}

impl TryFrom<String> for Knockout {
    type Error = KnockoutError;

    fn try_from(text: String) -> Result<Self, KnockoutError> {
        text.parse()
    }
}

impl From<Knockout> for String {
    fn from(knockout: Knockout) -> Self {
        knockout.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: LayerKind = LayerKind::Softmax { window: None, sinks: false, indexed: false };

    fn spans() -> Vec<Span> {
        vec![
            Span::new("bos", 0..1),
            Span::new("session[0]", 1..4).with_role("old"),
            Span::new("session[1]", 4..7).with_role("new"),
            Span::new("session[2]", 7..8).with_role("old"),
            Span::new("query", 8..10).with_role("query"),
            Span::new("template[1]", 10..12),
        ]
    }

    fn holes(text: &str, kinds: &[LayerKind]) -> Result<LayerHoles, KnockoutError> {
        LayerHoles::new(&[text.parse()?], &spans(), 12, kinds)
    }

    #[test]
    fn text_and_knockout_are_the_same_thing() {
        for (text, name) in [
            ("query->old", "knockout-query-old"),
            ("query->old@8..16", "knockout-query-old-8-16"),
            ("only query->session[3]@0..1", "knockout-only-query-session-3-0-1"),
        ] {
            let knockout: Knockout = text.parse().unwrap();
            assert_eq!((knockout.to_string().as_str(), knockout.name().as_str()), (text, name));
            assert_eq!(serde_json::to_string(&knockout).unwrap(), format!("\"{text}\""));
            assert_eq!(serde_json::from_str::<Knockout>(&format!("\"{text}\"")).unwrap(), knockout);
        }
        assert_eq!(" query -> old @ 2 .. 3".parse::<Knockout>().unwrap().to_string(), "query->old@2..3");
        for (text, why) in [
            ("query", "no `->`"),
            ("->old", "missing"),
            ("query->@1..2", "missing"),
            ("query->old@8", "A..B"),
            ("query->old@x..2", "not a number"),
            ("query->old@3..3", "hold none"),
        ] {
            let message = text.parse::<Knockout>().unwrap_err().to_string();
            assert!(message.contains(text) && message.contains(why), "{message}");
        }
    }

    #[test]
    fn rows_are_all_from_the_first_on_unless_only_is_said_and_a_role_names_all_its_spans() {
        let all = holes("query->old@1..2", &[PLAIN; 3]).unwrap();
        assert_eq!(all.first_row(), Some(8));
        assert!(all.of(0).is_empty() && all.of(2).is_empty());
        for row in [8, 11, 4000] {
            assert_eq!(all.of(1).from_row(row), [1..4, 7..8], "{row}");
        }
        assert!(all.of(1).from_row(7).is_empty());
        let only = holes("only query->new", &[PLAIN; 3]).unwrap();
        assert_eq!(only.of(2).from_row(9), std::slice::from_ref(&(4..7)));
        assert!(only.of(2).from_row(10).is_empty());
        let both = [
            Knockout { rows: "query".to_owned(), keys: "old".to_owned(), layers: None, only: false },
            Knockout {
                rows: "new".to_owned(),
                keys: "session[0]".to_owned(),
                layers: Some(0..1),
                only: true,
            },
        ];
        let both = LayerHoles::new(&both, &spans(), 12, &[PLAIN; 2]).unwrap();
        assert_eq!(both.of(0).from_row(5), std::slice::from_ref(&(1..4)));
        assert!(both.of(1).from_row(5).is_empty());
    }

    #[test]
    fn exact_rows_cover_generated_tokens_where_they_reach_the_end_of_the_prompt() {
        let rows = |text: &str| {
            let knockout: Knockout = text.parse().unwrap();
            LayerHoles::exact(&[knockout], &spans(), 12, &[PLAIN]).map(|holes| {
                (0..40).filter(|&row| !holes.of(0).from_row(row).is_empty()).collect::<Vec<usize>>()
            })
        };
        let onwards: Vec<usize> = (11..40).collect();
        assert_eq!(rows("query->old").unwrap(), [8, 9]);
        assert_eq!(rows("template[1]->old").unwrap(), (10..40).collect::<Vec<_>>());
        assert_eq!(rows("only template[1]->old").unwrap(), [10, 11]);
        assert_eq!(
            (rows("last->old").unwrap(), rows("only last->old").unwrap()),
            (onwards.clone(), vec![11])
        );
        assert_eq!(
            (rows("answer->old").unwrap(), rows("only each->old").unwrap()),
            (onwards.clone(), onwards)
        );
        let nothing = rows("bos->old").unwrap_err().to_string();
        assert!(nothing.contains("blocks nothing") && !nothing.contains("window"), "{nothing}");
    }

    #[test]
    fn a_layer_shows_some_key_of_a_range_to_some_row_of_another_by_the_plain_definition() {
        let ranges = || (0..7).flat_map(|start| (start..8).map(move |end| start..end));
        for window in [None, Some(1), Some(3)] {
            let kind = LayerKind::Softmax { window, sinks: false, indexed: false };
            for (rows, keys) in ranges().flat_map(|rows| ranges().map(move |keys| (rows.clone(), keys))) {
                let sees =
                    |row: usize, key: usize| key <= row && window.is_none_or(|window| row - key < window);
                let plain = rows.clone().any(|row| keys.clone().any(|key| sees(row, key)));
                assert_eq!(kind.shows(&rows, &keys), plain, "{rows:?} {keys:?} {window:?}");
            }
        }
    }
}
