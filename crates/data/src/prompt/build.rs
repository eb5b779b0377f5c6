//! Renders a history and a probe to the prompt text and the byte ranges of its parts.
//!
//! Each template is rendered twice, with markers and with the content, and the results must agree. So spans are exact even if a session
//! quotes the query, and a template that alters or repeats content is an error.

use std::collections::HashSet;

use jiff::civil::DateTime;

use palimpsest_core::span::{NO_SEGMENTS, PREFIX, QUERY, Span};
use palimpsest_core::text::{
    ChatTemplate, CountTokens, DEFAULT_DATE, FOLD_SEPARATOR, Message, MessageRole, Prompt, SpecialTokens,
    TextError,
};

use super::templates::SegmentText;
use super::{PromptError, SegmentNumbers, Templates};
use crate::case::{Case, Evidence, History, Probe, Segment, Stretch};

// Private-use characters: absent from wording, kept by templates.
const SYSTEM_MARK: &str = "\u{F0001}system\u{F0001}";
const USER_MARK: &str = "\u{F0002}user\u{F0002}";
const HISTORY_MARK: &str = "\u{F0003}history\u{F0003}";
const QUERY_MARK: &str = "\u{F0004}query\u{F0004}";

/// Upper bound of extra tokens at the borders between fixed text and segments.
pub const BORDER_TOKENS: usize = 8;

#[derive(Debug, Clone)]
pub struct PromptBuilder {
    templates: Templates,
    chat: ChatTemplate,
    numbers: SegmentNumbers,
    special_tokens: SpecialTokens,
}

struct Piece {
    label: Label,
    text: String,
}

/// Labels of a history; never shown.
#[derive(Clone, Copy)]
struct Labels<'a> {
    evidence: &'a [Evidence],
    stretches: &'a [Stretch],
}

#[derive(Clone, Copy, PartialEq)]
enum Label {
    System,
    Preamble,
    Segment(usize),
    Query,
    Instructions,
    Template,
    Prefix,
}

impl PromptBuilder {
    /// Numbers the shown segments consecutively by default.
    pub fn new(templates: Templates, chat_template: ChatTemplate) -> Self {
        PromptBuilder {
            templates,
            chat: chat_template,
            numbers: SegmentNumbers::default(),
            special_tokens: SpecialTokens::default(),
        }
    }

    #[must_use]
    pub fn numbering(self, numbers: SegmentNumbers) -> Self {
        PromptBuilder { numbers, ..self }
    }

    /// Sets how special tokens spelt in the data are tokenised.
    #[must_use]
    pub fn reading(self, special_tokens: SpecialTokens) -> Self {
        PromptBuilder { special_tokens, ..self }
    }

    /// Renders `probe` on `history`. `evidence` only labels spans.
    ///
    /// The probe's prefix follows the generation prompt and any thought, outside the messages. The query and the templates' output are
    /// trimmed. Special tokens in the data stay in the text; see [`Self::reading`]. Judge notes are not accepted:
    ///
    /// ```compile_fail
    /// # use palimpsest_data::{case::Case, prompt::{Prompt, PromptBuilder, PromptError}};
    /// fn leak(builder: &PromptBuilder, case: &Case) -> Result<Prompt, PromptError> {
    ///     builder.build(&case.history, &case.evidence, &case.judge)
    /// }
    /// ```
    pub fn build(
        &self,
        history: &History,
        evidence: &[Evidence],
        probe: &Probe,
    ) -> Result<Prompt, PromptError> {
        let texts = self.segment_texts(history)?;
        self.build_of(history, &texts, evidence, &[], probe)
    }

    /// Prompts of all probes on `history` (possibly truncated), with the case's evidence and stretches.
    pub fn build_all(&self, case: &Case, history: &History) -> Result<Vec<Prompt>, PromptError> {
        let texts = self.segment_texts(history)?;
        let of = |probe| self.build_of(history, &texts, &case.evidence, &case.stretches, probe);
        case.probes.iter().map(of).collect()
    }

    fn build_of(
        &self,
        history: &History,
        texts: &[SegmentText],
        evidence: &[Evidence],
        stretches: &[Stretch],
        probe: &Probe,
    ) -> Result<Prompt, PromptError> {
        let evidence: Vec<Evidence> = evidence.iter().chain(&probe.evidence).cloned().collect();
        let labels = Labels { evidence: &evidence, stretches };
        check(history, texts, labels)?;
        self.assemble(history, texts, labels, probe)
    }

    /// Tokens that each segment adds, in order. With usual vocabularies they do not depend on neighbours, but may depend on segment
    /// numbers: check the truncated prompt's length and drop another segment if needed.
    pub fn segment_costs(
        &self,
        history: &History,
        tokens: &dyn CountTokens,
    ) -> Result<Vec<usize>, PromptError> {
        let texts = self.segment_texts(history)?;
        let texts: Vec<&str> = texts.iter().map(|segment| segment.text.as_str()).collect();
        Ok(tokens.count_each(&texts, self.special_tokens)?)
    }

    /// Upper bound of the tokens outside the segments, over all `probes`, including [`BORDER_TOKENS`].
    pub fn fixed_cost(
        &self,
        history: &History,
        probes: &[Probe],
        tokens: &dyn CountTokens,
    ) -> Result<usize, PromptError> {
        let mut most = 0;
        for probe in probes {
            let prompt = self.assemble(history, &[], Labels { evidence: &[], stretches: &[] }, probe)?;
            most = most.max(tokens.count(&prompt.text)? + BORDER_TOKENS);
        }
        Ok(most)
    }

    /// `texts`: rendered segments, all or none (fixed part only).
    fn assemble(
        &self,
        history: &History,
        texts: &[SegmentText],
        labels: Labels<'_>,
        probe: &Probe,
    ) -> Result<Prompt, PromptError> {
        let mut user = self.user_pieces(history, texts, probe)?;
        let mut messages = vec![Message {
            role: MessageRole::User,
            content: user.iter().map(|piece| piece.text.as_str()).collect(),
        }];
        let system = self.templates.system(&probe.form)?;
        if !system.is_empty() {
            messages.insert(0, Message { role: MessageRole::System, content: system.clone() });
        }
        let mut slots = Vec::new();
        if !system.is_empty() && self.chat.folds_system() {
            user.insert(0, Piece { label: Label::System, text: format!("{system}{FOLD_SEPARATOR}") });
        } else if !system.is_empty() {
            slots.push((SYSTEM_MARK, "system text", vec![Piece { label: Label::System, text: system }]));
        }
        slots.push((USER_MARK, "user content", user));

        let now = self.asked_at(history);
        let markers: Vec<Message> = (messages.iter())
            .filter(|message| message.role == MessageRole::User || !self.chat.folds_system())
            .map(|message| Message {
                role: message.role,
                content: if message.role == MessageRole::User { USER_MARK } else { SYSTEM_MARK }.to_owned(),
            })
            .collect();
        let render = |messages: &[Message]| match probe.prefix.is_empty() {
            true => self.chat.render_on(messages, true, now),
            // A prefilled answer skips the thought.
            false => self.chat.render_past_thought_on(messages, now),
        };
        let skeleton = render(&markers)?;
        let mut pieces = fill(self.chat.name(), &skeleton, slots, Label::Template)?;
        let text = render(&messages)? + &probe.prefix;
        if !probe.prefix.is_empty() {
            pieces.push(Piece { label: Label::Prefix, text: probe.prefix.clone() });
        }
        if !equals(&text, &pieces) {
            return Err(TextError::Altered { name: self.chat.name().to_owned(), what: "message" }.into());
        }
        let (spans, starts) = label(&pieces, self.chat.bos(), history, labels.evidence);
        let overlays = overlays(history, texts, &spans, &starts, labels)?;
        Ok(Prompt { text, spans, overlays, special_tokens: self.special_tokens, messages })
    }

    fn user_pieces(
        &self,
        history: &History,
        texts: &[SegmentText],
        probe: &Probe,
    ) -> Result<Vec<Piece>, PromptError> {
        let name = self.templates.file(&probe.form)?;
        let query = probe.query.trim();
        if query.is_empty() {
            return Err(PromptError::EmptyQuery { probe: probe.id.clone() });
        }
        let told = history.query_time.filter(|_| self.templates.query_time());
        let date = told.map(|time| time.strftime("%Y-%m-%d %H:%M").to_string());
        let whole: String = texts.iter().map(|segment| segment.text.as_str()).collect();
        let skeleton = self.templates.framing(&probe.form, HISTORY_MARK, QUERY_MARK, date.as_deref())?;
        let slots = vec![
            (
                HISTORY_MARK,
                "history",
                (texts.iter().enumerate())
                    .map(|(place, segment)| Piece {
                        label: Label::Segment(place),
                        text: segment.text.clone(),
                    })
                    .collect(),
            ),
            (QUERY_MARK, "query", vec![Piece { label: Label::Query, text: query.to_owned() }]),
        ];
        let query_first =
            skeleton.find(QUERY_MARK) < skeleton.find(HISTORY_MARK) && skeleton.contains(QUERY_MARK);
        if query_first && !self.templates.question_first() {
            return Err(PromptError::QueryFirst(name.to_owned()));
        }
        let before = skeleton.find(HISTORY_MARK).and_then(|at| skeleton.get(..at)).unwrap_or_default();
        if !before.trim_start().ends_with('\n') {
            let marks = skeleton.matches(HISTORY_MARK).count();
            return Err(match marks {
                1 => PromptError::HistoryNotOnOwnLine(name.to_owned()),
                count => TextError::Placement { name: name.to_owned(), what: "history", count }.into(),
            });
        }
        let mut pieces = fill(name, skeleton.trim(), slots, Label::Instructions)?;
        if let Some(first) = pieces.first_mut().filter(|piece| piece.label == Label::Instructions) {
            first.label = Label::Preamble;
        }
        let text = self.templates.framing(&probe.form, &whole, query, date.as_deref())?;
        if !equals(text.trim(), &pieces) {
            return Err(TextError::Altered { name: name.to_owned(), what: "history or the query" }.into());
        }
        give_space_to_last_segment(&mut pieces);
        Ok(pieces)
    }

    /// Date for the chat template: the query time if shown, else the last segment time.
    fn asked_at(&self, history: &History) -> DateTime {
        let last = || history.segments.iter().rev().find_map(|segment| segment.time);
        let told = history.query_time.filter(|_| self.templates.query_time());
        told.or_else(last).unwrap_or(DEFAULT_DATE)
    }

    fn segment_texts(&self, history: &History) -> Result<Vec<SegmentText>, PromptError> {
        let segments = history.segments.iter().enumerate();
        segments.map(|(place, segment)| self.templates.segment(segment, place, self.numbers)).collect()
    }
}

fn check(history: &History, texts: &[SegmentText], labels: Labels<'_>) -> Result<(), PromptError> {
    let mut indices = HashSet::new();
    for Segment { index, kind, .. } in &history.segments {
        if !indices.insert(*index) {
            return Err(PromptError::DuplicateSegment { segment: *index });
        }
        if NO_SEGMENTS.contains(&kind.as_str()) || kind.contains(['[', ']', '.']) || kind.is_empty() {
            return Err(PromptError::SegmentKind { kind: kind.clone() });
        }
    }
    let mut roles: Vec<(usize, &str)> = Vec::new();
    for Evidence { role, place } in labels.evidence {
        let Some(at) = history.segments.iter().position(|segment| segment.index == place.segment) else {
            return Err(PromptError::EvidenceMissing { segment: place.segment });
        };
        if let (Some(turn), Some(SegmentText { turns, .. })) = (place.turn, texts.get(at))
            && turn >= turns.len()
        {
            let (segment, turns) = (place.segment, turns.len());
            return Err(PromptError::NoSuchTurn { segment, turn, turns });
        }
        if place.is_segment() {
            match roles.iter().find(|(segment, _)| *segment == place.segment) {
                Some((segment, other)) if other != role => {
                    let roles = format!("`{other}` and `{role}`");
                    return Err(PromptError::TwoRoles { segment: *segment, roles });
                }
                _ => roles.push((place.segment, role)),
            }
        }
    }
    Ok(())
}

/// Replaces slot markers by their pieces; text between them gets the label `own`. Drops empty pieces.
fn fill(
    name: &str,
    skeleton: &str,
    slots: Vec<(&str, &'static str, Vec<Piece>)>,
    own: Label,
) -> Result<Vec<Piece>, PromptError> {
    let mut placed = Vec::with_capacity(slots.len());
    for (marker, what, pieces) in slots {
        let count = skeleton.matches(marker).count();
        match skeleton.find(marker) {
            Some(at) if count == 1 => placed.push((at, at + marker.len(), pieces)),
            _ => return Err(TextError::Placement { name: name.to_owned(), what, count }.into()),
        }
    }
    placed.sort_by_key(|&(start, ..)| start);
    let mut filled = Vec::new();
    let mut reached = 0;
    for (start, end, pieces) in placed {
        filled.push(Piece { label: own, text: skeleton.get(reached..start).unwrap_or_default().to_owned() });
        filled.extend(pieces);
        reached = end;
    }
    filled.push(Piece { label: own, text: skeleton.get(reached..).unwrap_or_default().to_owned() });
    filled.retain(|piece| !piece.text.is_empty());
    Ok(filled)
}

/// Trailing white space joins the last segment; otherwise one token could straddle the border.
fn give_space_to_last_segment(pieces: &mut Vec<Piece>) {
    let Some(last) = pieces.iter().rposition(|piece| matches!(piece.label, Label::Segment(_))) else {
        return;
    };
    if let [.., segment, next] = pieces.get_mut(..last + 2).unwrap_or_default() {
        let rest = next.text.trim_start();
        let space = next.text.len() - rest.len();
        segment.text.extend(next.text.drain(..space));
    }
    pieces.retain(|piece| !piece.text.is_empty());
}

fn equals(text: &str, pieces: &[Piece]) -> bool {
    let mut rest = Some(text);
    for piece in pieces {
        rest = rest.and_then(|rest| rest.strip_prefix(piece.text.as_str()));
    }
    rest == Some("")
}

/// Numbers labels, strips `bos` and assigns roles. Also returns the span index of each segment.
fn label(pieces: &[Piece], bos: &str, history: &History, evidence: &[Evidence]) -> (Vec<Span>, Vec<usize>) {
    let mut spans: Vec<Span> = Vec::with_capacity(pieces.len() + 1);
    let mut segments = Vec::with_capacity(history.segments.len());
    let (mut templates, mut instructions, mut start) = (0, 0, 0);
    for piece in pieces {
        let mut length = piece.text.len();
        if start == 0 && piece.label == Label::Template && !bos.is_empty() && piece.text.starts_with(bos) {
            spans.push(Span::new("bos", 0..bos.len()));
            start = bos.len();
            length -= bos.len();
            if length == 0 {
                continue;
            }
        }
        let next = |kind: &str, counter: &mut usize| {
            *counter += 1;
            format!("{kind}[{}]", *counter - 1)
        };
        let (label, role) = match piece.label {
            Label::System => ("system".to_owned(), None),
            Label::Preamble => ("preamble".to_owned(), None),
            Label::Segment(place) => {
                segments.push(spans.len());
                let segment = &history.segments[place];
                let whole = |e: &&Evidence| e.place.is_segment() && e.place.segment == segment.index;
                (segment.label(), evidence.iter().find(whole).map(|found| found.role.clone()))
            }
            Label::Query => (QUERY.to_owned(), Some(QUERY.to_owned())),
            Label::Prefix => (PREFIX.to_owned(), None),
            Label::Instructions => (next("instructions", &mut instructions), None),
            Label::Template => (next("template", &mut templates), None),
        };
        spans.push(Span { role, ..Span::new(label, start..start + length) });
        start += length;
    }
    (spans, segments)
}

/// Spans of sub-segment evidence and of stretches. `starts`: span index per segment.
fn overlays(
    history: &History,
    texts: &[SegmentText],
    spans: &[Span],
    starts: &[usize],
    labels: Labels<'_>,
) -> Result<Vec<Span>, PromptError> {
    let mut overlays: Vec<Span> = Vec::new();
    for Evidence { role, place } in labels.evidence.iter().filter(|evidence| !evidence.place.is_segment()) {
        let at = history.segments.iter().position(|segment| segment.index == place.segment);
        let Some((segment, text, span)) =
            at.and_then(|at| Some((history.segments.get(at)?, texts.get(at)?, spans.get(*starts.get(at)?)?)))
        else {
            return Err(PromptError::EvidenceMissing { segment: place.segment });
        };
        let turn = place.turn.unwrap_or_default();
        let (Some(shown), Some(said)) = (text.turns.get(turn), segment.turns.get(turn)) else {
            let (segment, turns) = (place.segment, text.turns.len());
            return Err(PromptError::NoSuchTurn { segment, turn, turns });
        };
        let cut = said.content.len() - said.content.trim_start().len();
        let bytes = match &place.bytes {
            None => 0..shown.len(),
            Some(bytes) => bytes.start.saturating_sub(cut)..bytes.end.saturating_sub(cut).min(shown.len()),
        };
        let border = |at: usize| text.text.is_char_boundary(shown.start + at);
        // Out-of-range bytes are an error: a shorter span would be measured.
        let beyond = place.bytes.as_ref().is_some_and(|bytes| bytes.end > said.content.len());
        if beyond || bytes.is_empty() || !border(bytes.start) || !border(bytes.end) {
            return Err(PromptError::NoSuchBytes { label: format!("{}{place}", span.label) });
        }
        let start = span.start + shown.start + bytes.start;
        let evidence = Span::new(format!("{}{place}", span.label), start..start + bytes.len());
        overlays.push(evidence.with_role(role.clone()));
    }
    for Stretch { label, first, last } in labels.stretches {
        // Only segments left by truncation.
        let inside = history.segments.iter().zip(starts).filter(|(s, _)| (*first..=*last).contains(&s.index));
        let mut places = inside.filter_map(|(_, &at)| spans.get(at));
        let Some(one) = places.next() else { continue };
        let end = places.next_back().unwrap_or(one).end;
        overlays.push(Span::new(label.clone(), one.start..end));
    }
    Ok(overlays)
}

/// Texts that appear verbatim in prompts: turns, queries and prefixes.
pub fn contents(case: &Case) -> impl Iterator<Item = &str> {
    let turns = case.history.segments.iter().flat_map(|segment| &segment.turns);
    let queries = case.probes.iter().flat_map(|probe| [probe.query.as_str(), probe.prefix.as_str()]);
    turns.map(|turn| turn.content.as_str()).chain(queries)
}
