//! Judging by reply: the judge is asked for JSON, and its reply is read leniently (see `reply`).
//!
//! Ids on which the first reply holds no verdict are asked for again, once. A refusal is not argued with.

use super::instructions::{Instructions, Reasons};
use super::reply::{Found, ReplyText, read_verdicts};
use super::{Exchange, JudgeError, Judged, NoVerdict};
use crate::benchmarks::VerdictKind;
use crate::chat::{ChatModel, Message, MessageRole, Reply, Sampling, StopReason};

const QUOTED: usize = 200;

/// Most tokens of a reply with verdicts: three short reasons, with room for a model that thinks aloud.
pub const REPLY_TOKENS: usize = 2048;

/// Asks a judge for JSON.
///
/// The verdicts of the second reply are merged with those of the first by id. What is missing then, contradictory or refused is an
/// error for the exchanges concerned.
pub fn judge_by_reply(
    model: &mut dyn ChatModel,
    sampling: &Sampling,
    messages: &[Message],
    exchanges: &[Exchange],
    instructions: &Instructions,
) -> Result<Judged, JudgeError> {
    let ids: Vec<&str> = exchanges.iter().map(|exchange| exchange.probe.id.as_str()).collect();
    let first = model.reply(messages, sampling)?;
    let mut found = read(&first, &ids, (ids.len() == 1).then_some(0), instructions);
    let missing: Vec<usize> =
        (0..ids.len()).filter(|&at| found[at] == Found::Missing && exchanges[at].answer.is_some()).collect();
    let mut replies = vec![first];
    if !missing.is_empty() && replies[0].stop != StopReason::Refused && replies[0].stop.has_answer() {
        let wanted: Vec<&str> = missing.iter().map(|&at| ids[at]).collect();
        let again = request_again(messages, &replies[0], &wanted, &found, instructions);
        let second = model.reply(&again, sampling)?;
        let sole = missing.first().copied().filter(|_| missing.len() == 1);
        let mut of_second = read(&second, &ids, sole, instructions);
        for at in missing {
            std::mem::swap(&mut found[at], &mut of_second[at]);
        }
        replies.push(second);
    }
    let verdicts = found.into_iter().zip(exchanges).map(|(found, exchange)| match found {
        Found::Verdict(verdict) => Ok(verdict),
        Found::Differing(one, other) => Err(NoVerdict::Differing(one, other)),
        Found::Missing if exchange.answer.is_none() => Err(NoVerdict::NoAnswer),
        Found::Missing => Err(why_missing(&replies, sampling)),
    });
    let verdicts = verdicts.collect();
    Ok(Judged { verdicts, replies: replies.into_iter().map(|reply| reply.text).collect() })
}

fn is_cut(reply: &Reply) -> bool {
    reply.stop == StopReason::MaxNewTokens
}

fn read(reply: &Reply, ids: &[&str], sole: Option<usize>, instructions: &Instructions) -> Vec<Found> {
    if reply.stop == StopReason::Refused {
        return vec![Found::Missing; ids.len()];
    }
    read_verdicts(ReplyText { text: &reply.text, cut: is_cut(reply), sole }, ids, instructions.verdict)
}

/// The conversation so far, and the request for what it lacks. A greedy judge would say the same again to the same messages.
fn request_again(
    messages: &[Message],
    first: &Reply,
    wanted: &[&str],
    found: &[Found],
    Instructions { verdict, reasons, .. }: &Instructions,
) -> Vec<Message> {
    let ids = wanted.join(", ");
    let lack = match found.iter().any(|found| *found != Found::Missing) {
        _ if is_cut(first) => "That was cut off. Be brief.".to_owned(),
        true => format!("That holds no verdict on {ids}."),
        false => "That could not be read.".to_owned(),
    };
    let decision = format!("\"{}\" ({})", verdict.key(), verdict.values());
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

/// Why the last reply holds no verdict.
fn why_missing(replies: &[Reply], sampling: &Sampling) -> NoVerdict {
    let Some(last) = replies.last() else { return NoVerdict::Nothing };
    let words = last.text.split_whitespace().collect::<Vec<_>>().join(" ");
    let began: String = words.chars().take(QUOTED).collect();
    match last.stop {
        StopReason::Refused => NoVerdict::Refused { began },
        StopReason::MaxNewTokens => NoVerdict::Cut { tokens: sampling.max_new_tokens, began },
        stop @ (StopReason::ThoughtCut | StopReason::ThoughtOnly) => NoVerdict::Thought(stop),
        StopReason::EndOfTurn => NoVerdict::Unreadable { began },
    }
}
