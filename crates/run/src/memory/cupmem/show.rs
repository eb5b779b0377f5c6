//! Prints a store: each slot's history with causes, times and reasons, then each session's decisions.

use std::fmt::Write;

use super::schema::Slot;
use super::store::{Change, ChangeKind, Evidence, Item, Marker, Moment, Relation, Store};

pub fn show(store: &Store) -> String {
    let mut out = String::new();
    for slot in Slot::all() {
        let mut items = store.items.iter().filter(|item| item.slot == slot).peekable();
        let mut markers = store.markers.iter().filter(|marker| marker.slot == slot).peekable();
        if items.peek().is_none() && markers.peek().is_none() {
            continue;
        }
        let single = if slot.is_single() { " (one state at a time)" } else { "" };
        let _ = writeln!(out, "{slot}{single}");
        items.for_each(|item| show_item(&mut out, store, item));
        for Marker { reason, by, at, cleared, .. } in markers {
            let _ = writeln!(out, "  unknown since {}, by {}: {reason}", moment(at), by.join(", "));
            if let Some(cleared) = cleared {
                let _ = writeln!(out, "    until {}", moment(cleared));
            }
        }
    }
    if out.is_empty() {
        out.push_str("The store holds no states.\n");
    }
    let _ = writeln!(out, "\nDecisions by session");
    for record in &store.sessions {
        let _ = writeln!(out, "{}", moment(&record.at));
        for note in &record.notes {
            let reason = with(": ", &note.reason);
            let _ = writeln!(out, "  {} {} -> {}{reason}", note.step, note.about, note.decision);
        }
        if record.notes.is_empty() {
            let _ = writeln!(out, "  nothing found");
        }
    }
    out
}

fn show_item(out: &mut String, store: &Store, item: &Item) {
    let status = if item.is_active() { "active" } else { "stale" };
    let weak = if item.is_strong() { "" } else { ", weak" };
    let _ = writeln!(out, "  {} ({status}{weak}, {:.2}): {}", item.id, item.confidence, item.value);
    for change in &item.history {
        show_change(out, store, change);
    }
    for Evidence { session, turns, text } in &item.evidence {
        let turns: Vec<String> = turns.iter().map(usize::to_string).collect();
        let turns = with(" turn ", &turns.join(", "));
        let _ = writeln!(out, "    said in {session}{turns}: \"{text}\"");
    }
    for link in store.links.iter().filter(|link| link.item == item.id) {
        let relation = match link.relation {
            Relation::Successor => "succeeded by",
            Relation::Support => "supported by",
        };
        let update = said(store, &link.update);
        let _ = writeln!(out, "    {relation} {update}, {}: {}", moment(&link.at), link.reason);
    }
}

fn show_change(out: &mut String, store: &Store, change: &Change) {
    let kind = match change.kind {
        ChangeKind::Added => "written",
        ChangeKind::Refined => "refined",
        ChangeKind::Replaced => "replaced",
        ChangeKind::Invalidated => "invalidated",
        ChangeKind::Unknown => "archived, its slot unknown",
        ChangeKind::Weakened => "weakened",
    };
    let by: Vec<String> = change.updates.iter().map(|update| said(store, update)).collect();
    let (at, step, reason) = (moment(&change.at), change.step, with(": ", &change.reason));
    let before = change.before.as_ref().map(|before| format!(" (was: {before})")).unwrap_or_default();
    let _ = writeln!(out, "    {kind} {at} by {} in {step}{reason}{before}", by.join("; "));
}

fn said(store: &Store, update: &str) -> String {
    let value = store.update(update).map(|update| update.value.as_str()).unwrap_or_default();
    format!("{update} \"{value}\"")
}

fn moment(at: &Moment) -> String {
    let time = at.time.as_ref().map(|time| format!(" of {time}")).unwrap_or_default();
    format!("{}{time}", at.session)
}

/// Prefixes non-empty text with a separator.
fn with(separator: &str, text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("{separator}{text}") }
}
