//! Judging by reply: requests JSON and parses the reply leniently (see `reply`). Ids without a verdict are requested once more; refusals
//! are not.

use super::reply::{Found, ReplyText, read_verdicts, tidy};
use super::{Exchange, Instructions, JudgeError, Judged, NoVerdict, Reasons, Verdict};
use crate::chat::{ChatModel, Message, MessageRole, Reply, Sampling, StopReason};
use palimpsest_data::benchmarks::{Said, VerdictKind};
use palimpsest_data::ground::order::unique;

const QUOTED: usize = 200;

/// Maximum tokens of a reply; fits three short reasons and thinking aloud.
pub const REPLY_TOKENS: usize = 2048;

/// Merges the verdicts of both replies by id. Missing, contradictory or refused verdicts are errors of their exchanges.
pub fn judge_by_reply(
    model: &mut dyn ChatModel,
    sampling: &Sampling,
    messages: &[Message],
    exchanges: &[Exchange],
    instructions: &Instructions,
) -> Result<Judged, JudgeError> {
    let ids: Vec<&str> = exchanges.iter().map(|exchange| exchange.probe.id.as_str()).collect();
    let first = model.reply(messages, sampling)?;
    let mut found = read(&first, exchanges, (ids.len() == 1).then_some(0), instructions);
    let is_open = |found: &Found| matches!(found, Found::Missing | Found::Unread(_));
    let missing: Vec<usize> =
        (0..ids.len()).filter(|&at| is_open(&found[at]) && exchanges[at].answer.is_some()).collect();
    let mut replies = vec![first];
    if !missing.is_empty() && replies[0].stop != StopReason::Refused && replies[0].stop.has_answer() {
        let wanted: Vec<(&Exchange, &Found)> =
            missing.iter().map(|&at| (&exchanges[at], &found[at])).collect();
        let all = found.iter().all(is_open);
        let again = request_again(messages, &replies[0], &wanted, all, instructions);
        let second = model.reply(&again, sampling)?;
        let sole = missing.first().copied().filter(|_| missing.len() == 1);
        let mut of_second = read(&second, exchanges, sole, instructions);
        for at in missing {
            std::mem::swap(&mut found[at], &mut of_second[at]);
        }
        replies.push(second);
    }
    let verdicts = found.into_iter().zip(exchanges).map(|(found, exchange)| match found {
        Found::Verdict(verdict) => Ok(verdict),
        Found::Differing(one, other) => Err(NoVerdict::Differing(one, other)),
        Found::Missing | Found::Unread(_) if exchange.answer.is_none() => Err(NoVerdict::NoAnswer),
        Found::Unread(said) => Err(NoVerdict::OffScale {
            key: instructions.verdict.key(),
            values: instructions.verdict.values(&exchange.probe.facets),
            said,
        }),
        Found::Missing => Err(why_missing(&replies, sampling)),
    });
    let verdicts = verdicts.collect();
    Ok(Judged { verdicts, replies: replies.into_iter().map(|reply| reply.text).collect() })
}

fn is_cut(reply: &Reply) -> bool {
    reply.stop == StopReason::MaxNewTokens
}

fn read(
    reply: &Reply,
    exchanges: &[Exchange],
    sole: Option<usize>,
    Instructions { verdict: kind, .. }: &Instructions,
) -> Vec<Found> {
    if reply.stop == StopReason::Refused {
        return vec![Found::Missing; exchanges.len()];
    }
    let ids: Vec<&str> = exchanges.iter().map(|exchange| exchange.probe.id.as_str()).collect();
    let found = read_verdicts(ReplyText { text: &reply.text, cut: is_cut(reply), sole }, &ids, *kind);
    let given = |(found, exchange): (Found, &Exchange)| match found {
        Found::Verdict(Verdict { said: Said::Score(score), .. })
            if !kind.gives(score, &exchange.probe.facets) =>
        {
            Found::Unread(score.to_string())
        }
        found => found,
    };
    found.into_iter().zip(exchanges).map(given).collect()
}

/// The conversation with a request for the missing ids; repeating the same messages to a greedy judge would change nothing.
fn request_again(
    messages: &[Message],
    first: &Reply,
    wanted: &[(&Exchange, &Found)],
    all: bool,
    Instructions { verdict, reasons, .. }: &Instructions,
) -> Vec<Message> {
    let ids: Vec<&str> = wanted.iter().map(|(exchange, _)| exchange.probe.id.as_str()).collect();
    let unread = wanted.iter().find_map(|(_, found)| match found {
        Found::Unread(said) => Some(said),
        _ => None,
    });
    let lack = match unread {
        _ if is_cut(first) => "That was cut off. Be brief.".to_owned(),
        Some(said) => format!("{said} is no verdict here."),
        None if all => "That could not be read.".to_owned(),
        None => format!("That holds no verdict on {}.", ids.join(", ")),
    };
    let values = wanted.iter().map(|(exchange, _)| verdict.values(&exchange.probe.facets));
    let values = match unique(values.clone()).as_slice() {
        [one] => one.clone(),
        _ => ids
            .iter()
            .zip(values)
            .map(|(id, values)| format!("{id}: {values}"))
            .collect::<Vec<_>>()
            .join("; "),
    };
    let ids = ids.join(", ");
    let decision = format!("\"{}\" ({values})", verdict.key());
    let fields = match reasons {
        Reasons::First => format!("\"reason\" and then {decision}"),
        Reasons::Last => format!("{decision} and \"reason\""),
        Reasons::None => format!("{decision} alone"),
    };
    let keys = match verdict {
        VerdictKind::Label { .. } => format!("with {fields}"),
        _ => format!("with the keys {ids}, each holding an object with {fields}"),
    };
    let content = format!("{lack} Reply with one JSON object and nothing else, {keys}.");
    let mut again = messages.to_vec();
    again.push(Message { role: MessageRole::Assistant, content: first.text.clone() });
    again.push(Message { role: MessageRole::User, content });
    again
}

fn why_missing(replies: &[Reply], sampling: &Sampling) -> NoVerdict {
    let Some(last) = replies.last() else { return NoVerdict::Nothing };
    let began: String = tidy(&last.text).chars().take(QUOTED).collect();
    match last.stop {
        StopReason::Refused => NoVerdict::Refused { began },
        StopReason::MaxNewTokens => NoVerdict::Cut { tokens: sampling.max_new_tokens, began },
        stop @ (StopReason::ThoughtCut | StopReason::ThoughtOnly) => NoVerdict::Thought(stop),
        StopReason::EndOfTurn => NoVerdict::Unreadable { began },
    }
}
