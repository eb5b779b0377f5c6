//! Evidence sessions: a statement amid small talk, with an exact token count. Statements of equal token length get the same small talk, so
//! that swapped twins differ only in their values.

use palimpsest_core::text::{CountTokens, TextError};

use super::factors::Speaker;
use super::texts::{Chat, fill};
use crate::case::Turn;
use crate::case::draw::Draws;

const ATTEMPTS: usize = 60;
pub const USER: &str = "user";
pub const ASSISTANT: &str = "assistant";
/// Session number and time used for counting; the template renders both, and the digits affect the token count.
const PLACE: usize = 10;
const TIME: &str = "2025-01-15 10:30";
const NEXT: &str = "Session";

/// A session as the benchmark's template renders it; `place` is from 1.
pub fn rendered(place: usize, time: &str, turns: &[Turn]) -> String {
    let mut text = header(place, time);
    for turn in turns {
        let speaker = if turn.role == USER { "User" } else { "Assistant" };
        text.push_str(&format!("{speaker}: {}\n", turn.content));
    }
    text.push('\n');
    text
}

fn header(place: usize, time: &str) -> String {
    format!("Session {place} ({time})\n")
}

pub fn tokens(count: &dyn CountTokens, turns: &[Turn]) -> Result<usize, TextError> {
    // Some tokenizers merge the final blank line differently at the end of the text.
    let followed = rendered(PLACE, TIME, turns) + NEXT;
    Ok(count.count(&followed)?.saturating_sub(count.count(NEXT)?))
}

/// Token difference between this session number and a two-digit one; may be negative.
pub fn digits(count: &dyn CountTokens, place: usize) -> Result<isize, TextError> {
    Ok(count.count(&header(place, TIME))? as isize - count.count(&header(PLACE, TIME))? as isize)
}

#[derive(Debug, Clone, Copy)]
pub struct Content<'a> {
    pub statement: &'a str,
    pub about: &'a str,
    pub speaker: Speaker,
}

pub struct SmallTalk<'a> {
    chat: &'a Chat,
    costs: Vec<usize>,
}

impl<'a> SmallTalk<'a> {
    pub fn new(chat: &'a Chat, count: &dyn CountTokens) -> Result<Self, TextError> {
        let before = count.count("User: Hello.\n")?;
        let costs = chat.remarks.iter().map(|remark| {
            Ok(count.count(&format!("User: Hello. {remark}\n"))?.saturating_sub(before).max(1))
        });
        Ok(SmallTalk { chat, costs: costs.collect::<Result<_, TextError>>()? })
    }

    /// `None` if no draw gives exactly `wanted` tokens.
    pub fn session(
        &self,
        draws: &mut Draws,
        content: Content<'_>,
        wanted: usize,
        count: &dyn CountTokens,
    ) -> Result<Option<Vec<Turn>>, TextError> {
        let Chat { greetings, replies, acks, news, thanks, welcomes, .. } = self.chat;
        for _ in 0..ATTEMPTS {
            let frame = [greetings, replies, acks, news, thanks, welcomes];
            let frame = frame.map(|list| list[draws.index(list.len())].as_str());
            let mut order: Vec<usize> = (0..self.costs.len()).collect();
            draws.shuffle(&mut order);
            let bare = tokens(count, &self.turns(frame, content, &[]))?;
            let Some(missing) = wanted.checked_sub(bare) else { continue };
            let Some(remarks) = self.remarks(&order, missing) else { continue };
            let turns = self.turns(frame, content, &remarks);
            if tokens(count, &turns)? == wanted {
                return Ok(Some(turns));
            }
        }
        Ok(None)
    }

    fn turns(
        &self,
        [greeting, reply, ack, news, thanks, welcome]: [&str; 6],
        Content { statement, about, speaker }: Content<'_>,
        remarks: &[usize],
    ) -> Vec<Turn> {
        let mut opening = greeting.to_owned();
        for remark in remarks {
            opening += &format!(" {}", self.chat.remarks[*remark]);
        }
        let told = format!("{statement}.");
        let [first, second, third, fourth] = match speaker {
            Speaker::User => [opening, reply.to_owned(), told, ack.to_owned()],
            Speaker::Assistant => {
                let news = fill(news, &[("name", about)]);
                [format!("{opening} {news}"), told, thanks.to_owned(), welcome.to_owned()]
            }
        };
        vec![
            Turn::new(USER, first),
            Turn::new(ASSISTANT, second),
            Turn::new(USER, third),
            Turn::new(ASSISTANT, fourth),
        ]
    }

    /// Subset sum: the first remarks in `order` whose tokens sum to `missing`.
    fn remarks(&self, order: &[usize], missing: usize) -> Option<Vec<usize>> {
        // By sum: the remark that first reached it.
        let mut last: Vec<Option<usize>> = vec![None; missing + 1];
        let mut reached = vec![false; missing + 1];
        reached[0] = true;
        for (place, &remark) in order.iter().enumerate() {
            let cost = self.costs[remark];
            for sum in (cost..=missing).rev() {
                if !reached[sum] && reached[sum - cost] {
                    reached[sum] = true;
                    last[sum] = Some(place);
                }
            }
        }
        let (mut sum, mut chosen) = (missing, Vec::new());
        while sum > 0 {
            let remark = order[last[sum]?];
            chosen.push(remark);
            sum -= self.costs[remark];
        }
        Some(chosen)
    }
}
