//! A chat model that answers by step, from replies laid down beforehand, and what it was asked.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::super::model::{Step, StepModel};
use super::super::schema::Slot;
use super::super::{CupMem, Settings, Store};
use crate::chat::{ChatError, Message, Sampling};
use crate::memory::system::protocol::{MemorySystem, Op, SessionInput, Status, TurnInput, WriteEvent};

/// A call as the model got it.
#[derive(Clone)]
pub struct Call {
    pub step: Step,
    pub messages: Vec<Message>,
    pub schema: Option<Value>,
    pub sampling: Sampling,
}

impl Call {
    /// The data of the call: the first message after the instructions.
    pub fn data(&self) -> &str {
        &self.messages[1].content
    }
}

/// State that tests share with their model.
#[derive(Clone, Default)]
pub struct Script {
    replies: Arc<Mutex<BTreeMap<Step, VecDeque<String>>>>,
    calls: Arc<Mutex<Vec<Call>>>,
}

impl Script {
    /// The next reply to a step.
    pub fn on(&self, step: Step, reply: Value) -> &Self {
        self.raw(step, &reply.to_string())
    }

    /// The next reply to a step, JSON or not. `unreachable` is a model that is not there.
    pub fn raw(&self, step: Step, reply: &str) -> &Self {
        self.replies.lock().unwrap().entry(step).or_default().push_back(reply.to_owned());
        self
    }

    pub fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }

    /// The calls of one step.
    pub fn of(&self, step: Step) -> Vec<Call> {
        self.calls().into_iter().filter(|call| call.step == step).collect()
    }

    /// Calls by step.
    pub fn counts(&self) -> BTreeMap<Step, usize> {
        let mut counts = BTreeMap::new();
        for call in self.calls() {
            *counts.entry(call.step).or_default() += 1;
        }
        counts
    }

    pub fn forget_calls(&self) {
        self.calls.lock().unwrap().clear();
    }

    /// Are all replies used up?
    pub fn is_used_up(&self) -> bool {
        self.replies.lock().unwrap().values().all(VecDeque::is_empty)
    }

    /// One span that is a state, and one candidate of it.
    pub fn says(&self, slot: &str, value: &str, confidence: f64) -> &Self {
        self.on(Step::Spans, json!({ "spans": [span(value, json!({ "slots": [slot] }))] }));
        self.on(Step::Candidates, json!({ "candidates": [candidate(slot, value, confidence)] }))
    }

    pub fn decides(&self, decision: &str, target: Option<&str>) -> &Self {
        self.on(Step::LocalUpdate, json!({ "decision": decision, "target": target, "reason": "local" }))
    }

    /// A proposal in the next lane that is asked.
    pub fn proposes(&self, items: &[(&str, f64)]) -> &Self {
        // The code's variant wants slot, updates and spans besides: `fill` finds them in what the model is shown.
        let proposal = |(item, confidence): &(&str, f64)| {
            json!({
                "item": item, "value": "", "updates": [], "spans": [], "reason": "rests on it",
                "confidence": confidence, "slot": null,
            })
        };
        let proposals: Vec<Value> = items.iter().map(proposal).collect();
        self.on(Step::Proposals, json!({ "proposals": proposals }))
    }

    /// The same verdict by R3 and by R5, if that is asked.
    pub fn verifies(&self, over: Value) -> &Self {
        self.on(Step::Verify, verdict(over.clone())).on(Step::VerifyAgain, verdict(over))
    }

    pub fn judges(&self, decision: &str, target: Option<&str>) -> &Self {
        self.on(
            Step::Adjudicate,
            json!({ "decision": decision, "target": target, "value": null, "reason": "lost" }),
        )
    }
}

/// A span of turn 0 with defaults that `with` overwrites.
pub fn span(text: &str, with: Value) -> Value {
    let mut span = json!({
        "turns": [0], "text": text, "type": "state", "slots": [], "scope": "current", "salience": 0.9,
        "strength": "strong", "change": "none",
    });
    for (name, value) in with.as_object().unwrap() {
        span[name] = value.clone();
    }
    span
}

/// An explicit candidate of the first span.
pub fn candidate(slot: &str, value: &str, confidence: f64) -> Value {
    let domain = Slot::parse(slot).map_or("", |slot| slot.domain());
    json!({
        "domain": domain, "slot": slot, "value": value, "source": "explicit", "kind": "observed",
        "confidence": confidence, "spans": ["s0"],
    })
}

/// Is a reply meant for this call? Proposals without a slot of their own wait for the lane that lists one of their items.
fn is_for(step: Step, reply: &str, data: &str) -> bool {
    let reply: Value = serde_json::from_str(reply).unwrap_or_default();
    let proposals = reply["proposals"].as_array().filter(|all| step == Step::Proposals && !all.is_empty());
    let listed = |proposal: &Value| {
        let item = format!("{}, ", proposal["item"].as_str().unwrap_or_default());
        !proposal["slot"].is_null() || data.lines().any(|line| line.starts_with(&item))
    };
    proposals.is_none_or(|all| all.iter().any(listed))
}

/// Gives proposals without a slot the slot of their item, and all updates and spans that the model is shown.
fn fill(reply: &str, data: &str) -> String {
    let Ok(mut reply) = serde_json::from_str::<Value>(reply) else { return reply.to_owned() };
    let ids = |of: &str| {
        let lines = data.lines().filter(|line| line.starts_with(of));
        lines.map(|line| line.split([',', ':']).next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let proposals = reply["proposals"].as_array_mut().into_iter().flatten();
    for proposal in proposals.filter(|proposal| proposal["slot"].is_null()) {
        let item = format!("{}, ", proposal["item"].as_str().unwrap_or_default());
        let line = data.lines().find_map(|line| line.strip_prefix(&item)).unwrap_or_default();
        proposal["slot"] = json!(line.split(':').next());
        proposal["updates"] = json!(ids("update-"));
        proposal["spans"] = json!(ids("s0").into_iter().chain(ids("s1")).collect::<Vec<_>>());
    }
    reply.to_string()
}

/// The default reply where a script says nothing: the least.
fn default(step: Step, data: &str) -> Value {
    match step {
        Step::Spans => json!({ "spans": [] }),
        Step::Candidates => json!({ "candidates": [] }),
        Step::LocalUpdate => json!({ "decision": "ADD", "target": null, "reason": "new" }),
        Step::Affected => json!({ "affected": [] }),
        Step::Proposals => json!({ "proposals": [] }),
        // Both variants know one of the two words; the instructions say which.
        Step::Adjudicate if data.contains("KEEP") => {
            json!({ "decision": "KEEP", "target": null, "value": null, "reason": "" })
        }
        Step::Adjudicate => json!({ "decision": "NO_OP", "target": null, "reason": "" }),
        Step::Links => json!({ "relation": "NONE", "reason": "" }),
        Step::Parse => parsed(json!({})),
        Step::Verify | Step::VerifyAgain => verdict(json!({})),
        Step::Recover => json!({ "keep": [], "reason": "" }),
        Step::Ground => {
            json!({ "decision": "PROCEED", "decisive": [], "blocking": [], "supporting": [], "facts": [] })
        }
        Step::Constraints => json!({ "must": [], "must_not": [], "open": [] }),
        Step::Answer => json!({ "answer": "An answer." }),
        Step::Arbitrate | Step::Apply => unreachable!("{step} asks no model"),
    }
}

fn with(mut base: Value, over: Value) -> Value {
    for (name, value) in over.as_object().unwrap() {
        base[name] = value.clone();
    }
    base
}

/// R1's reply with defaults.
pub fn parsed(over: Value) -> Value {
    let base = json!({
        "intent": "validity_check", "slots": [], "proposition": "", "old_premise": "", "basis": "", "action": "",
        "goal": "", "options": [], "hidden_setup": "", "presuppositions": [],
    });
    with(base, over)
}

/// R3's reply with defaults.
pub fn verdict(over: Value) -> Value {
    let base = json!({
        "status": "UNRESOLVED", "confidence": 0.9, "supporting": [], "outdated": [], "usable": [], "blocked": [],
        "historical": [], "unknown_slots": [], "facts": [], "premise_safe": true,
    });
    with(base, over)
}

struct Scripted(Script);

impl StepModel for Scripted {
    fn name(&self) -> String {
        "scripted".to_owned()
    }

    fn complete(
        &mut self,
        step: Step,
        messages: &[Message],
        schema: Option<&Value>,
        sampling: &Sampling,
    ) -> Result<String, ChatError> {
        let call = Call { step, messages: messages.to_vec(), schema: schema.cloned(), sampling: *sampling };
        self.0.calls.lock().unwrap().push(call);
        let laid = match self.0.replies.lock().unwrap().get_mut(&step) {
            Some(laid) if laid.front().is_some_and(|next| is_for(step, next, &messages[1].content)) => {
                laid.pop_front()
            }
            _ => None,
        };
        let reply = laid.unwrap_or_else(|| default(step, &messages[0].content).to_string());
        let reply = if step == Step::Proposals { fill(&reply, &messages[1].content) } else { reply };
        if reply == "unreachable" { Err(ChatError::from("nobody is there".to_owned())) } else { Ok(reply) }
    }
}

/// The scope of all tests.
pub const SCOPE: &str = "history";

/// A CUPMem and its script.
pub struct World {
    pub system: CupMem,
    pub script: Script,
    sessions: usize,
    is_code: bool,
}

impl World {
    pub fn new(settings: Settings) -> Self {
        let is_code = settings.is_code();
        let script = Script::default();
        let mut system = CupMem::new(settings, Box::new(Scripted(script.clone())), None);
        system.reset(SCOPE).unwrap();
        World { system, script, sessions: 0, is_code }
    }

    pub fn code() -> Self {
        World::new(Settings::parse("code").unwrap())
    }

    pub fn paper() -> Self {
        World::new(Settings::parse("paper").unwrap())
    }

    /// Does it speak the words of the code's variant?
    pub fn system_is_code(&self) -> bool {
        self.is_code
    }

    pub fn store(&self) -> &Store {
        self.system.store(SCOPE).unwrap()
    }

    /// Writes the next session and holds the store to what must always be so.
    pub fn write(&mut self) -> Vec<WriteEvent> {
        let session = session(self.sessions);
        self.sessions += 1;
        let before = self.store().clone();
        let events = self.system.ingest(SCOPE, &session).unwrap().unwrap();
        hold(&before, self.store(), self.is_code);
        events
    }

    /// A session that says one state, written as W3 decides by default: added.
    pub fn knows(&mut self, slot: &str, value: &str) -> String {
        self.knows_at(slot, value, 0.7)
    }

    pub fn knows_at(&mut self, slot: &str, value: &str, confidence: f64) -> String {
        self.script.says(slot, value, confidence);
        self.write();
        let item = self.store().items.last().unwrap();
        assert_eq!(item.value, value, "it was not written");
        let id = item.id.clone();
        self.script.forget_calls();
        id
    }

    pub fn value(&self, id: &str) -> String {
        self.store().item(id).unwrap().value.clone()
    }

    pub fn is_active(&self, id: &str) -> bool {
        self.store().item(id).unwrap().is_active()
    }

    /// The slots that are marked.
    pub fn marked(&self) -> Vec<String> {
        self.store().standing().map(|marker| marker.slot.name().to_owned()).collect()
    }
}

/// The session of that number: the user speaks twice, the assistant once between.
pub fn session(at: usize) -> SessionInput {
    let turn = |id, role: &str, content: &str| TurnInput { id, role: role.into(), content: content.into() };
    SessionInput {
        id: format!("session[{at}]"),
        time: Some(format!("2024-05-{:02}", at + 1)),
        turns: vec![
            turn(0, "user", "I have news."),
            turn(1, "assistant", "Do tell."),
            turn(2, "user", "Here it is."),
        ],
    }
}

/// Operations of events, with what they are on.
pub fn ops(events: &[WriteEvent]) -> Vec<(Op, Option<&str>)> {
    events.iter().map(|event| (event.op, event.memory.as_deref())).collect()
}

/// Invariants after every session: nothing is deleted, and an item ends only by something later, or in the code's variant by its own session.
pub fn hold(before: &Store, after: &Store, is_code: bool) {
    let later = |end: usize, created: usize| end > created || (is_code && end == created);
    assert_eq!(after.sessions.len(), before.sessions.len() + 1);
    assert!(after.sessions.starts_with(&before.sessions));
    assert!(after.links.starts_with(&before.links));
    assert!(after.items.len() >= before.items.len() && after.updates.starts_with(&before.updates));
    for (old, new) in before.items.iter().zip(&after.items) {
        assert_eq!((&old.id, &old.slot, &old.created), (&new.id, &new.slot, &new.created));
        assert!(new.history.starts_with(&old.history) && new.evidence.starts_with(&old.evidence));
        assert!(old.status == Status::Active || *new == *old, "{} was stale and changed", old.id);
    }
    for (old, new) in before.markers.iter().zip(&after.markers) {
        assert_eq!((&old.slot, &old.at), (&new.slot, &new.at));
        assert!(old.cleared.is_none() || old.cleared == new.cleared);
    }
    assert!(after.markers.len() >= before.markers.len());
    for item in after.stale() {
        let end = item.archived().expect("a stale item says why");
        assert!(later(end.at.index, item.created.index), "{} ended by nothing later", item.id);
        let by_later = |id: &String| after.update(id).is_some_and(|u| later(u.at.index, item.created.index));
        assert!(end.updates.iter().all(by_later));
    }
    for marker in after.standing() {
        assert!(after.standing().filter(|other| other.slot == marker.slot).count() == 1);
    }
}
