//! The conformance test of a memory system: does it keep the protocol's promises, before hours are spent on it?
//!
//! Sentences with words that occur nowhere else are planted in short histories and looked for. Every finding is yes, no with a remedy, or
//! not offered. Needs no benchmark; where the system wants a model, a scripted one will do ([`super::scripted_model`]).

mod finding;
mod plants;
mod resume;

use std::collections::BTreeSet;
use std::path::Path;

use serde::Serialize;

use super::protocol::{Capability, Hello, Memory, MemorySystem, SessionInput};
pub use finding::{Finding, Outcome};
use finding::{Seen, Step, finding, no, not_offered, quoted, yes};
use palimpsest_core::digest::sha256;
use plants::{BAKERY, BOAT, FILLER, LOCKER, Plant, UNICODE, holds, said, session, turn, with};
use resume::resume;

/// All checks of a system.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Its answer to `hello`; absent where it does not start.
    pub hello: Option<Hello>,
    pub findings: Vec<Finding>,
}

impl Report {
    /// Is nothing broken that the protocol requires?
    pub fn passes(&self) -> bool {
        !self.findings.iter().any(|finding| finding.required && finding.outcome == Outcome::No)
    }
}

/// The models that a system is started with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Models {
    /// Those of the user, or scripted ones.
    Usual,
    /// A scripted language model whose JSON ends in the middle.
    Broken,
}

/// Makes the system anew, with a folder of its own; nothing is started yet.
pub type Open<'a> = dyn Fn(Models, &Path) -> Result<Box<dyn MemorySystem>, String> + 'a;

/// A scope of most checks.
const SCOPE: &str = "check-one";
/// Another one.
const OTHER: &str = "check-two";

/// Turns of the long session: more than a usual context of embedders or extraction prompts holds.
const LONG: usize = 120;

/// A running system, started again where it was lost.
struct Subject {
    system: Box<dyn MemorySystem>,
    hello: Hello,
    running: bool,
}

impl Subject {
    fn start(mut system: Box<dyn MemorySystem>) -> Step<Self> {
        let hello = system.hello()?;
        Ok(Subject { system, hello, running: true })
    }

    fn call<T>(&mut self, operation: impl FnOnce(&mut dyn MemorySystem) -> Step<T>) -> Step<T> {
        if !self.running {
            self.system.hello()?;
            self.running = true;
        }
        let done = operation(self.system.as_mut());
        if let Err(error) = &done {
            self.running = !error.kind.is_lost();
        }
        done
    }

    /// Writes a history into an emptied scope.
    fn write(&mut self, scope: &str, sessions: &[SessionInput]) -> Step<()> {
        self.call(|system| {
            system.reset(scope)?;
            for session in sessions {
                system.ingest(scope, session)?;
            }
            system.finish(scope).map(|_| ())
        })
    }

    fn search(&mut self, scope: &str, query: &str, k: usize) -> Step<Vec<Memory>> {
        self.call(|system| system.search(scope, query, k, None)).map(|found| found.memories)
    }

    /// All memories, where it offers a dump.
    fn dump(&mut self, scope: &str) -> Step<Option<Vec<Memory>>> {
        self.hello.can(Capability::Dump).then(|| self.call(|system| system.dump(scope))).transpose()
    }

    /// Is a plant among the memories found for its question?
    fn finds(&mut self, scope: &str, plant: &Plant) -> Step<bool> {
        Ok(self.search(scope, plant.query, 10)?.iter().any(|memory| holds(memory, plant)))
    }

    /// A digest of the store; `None` where it has none.
    fn fingerprint(&mut self, scope: &str) -> Step<Option<String>> {
        if self.hello.can(Capability::Fingerprint) {
            return self.call(|system| system.fingerprint(scope)).map(Some);
        }
        Ok(self.dump(scope)?.map(|dump| {
            let mut lines: Vec<String> = dump.iter().map(|memory| format!("{memory:?}")).collect();
            lines.sort_unstable();
            sha256(lines.join("\n"))
        }))
    }
}

fn texts(memories: &[Memory]) -> String {
    let quoted: Vec<String> = memories.iter().take(3).map(|memory| quoted(&memory.text)).collect();
    match (memories.len(), quoted.len()) {
        (0, _) => "nothing was found".to_owned(),
        (all, shown) if all > shown => format!("{all} were found, the first {}", quoted.join(", ")),
        _ => format!("found was {}", quoted.join(", ")),
    }
}

/// Checks a system; `folder` takes what it keeps. `asked` tells how often the broken model was asked.
pub fn check(open: &Open<'_>, folder: &Path, asked: &dyn Fn() -> usize) -> Result<Report, String> {
    let own = |name: &str| -> Result<std::path::PathBuf, String> {
        let own = folder.join(name);
        std::fs::create_dir_all(&own).map_err(|e| format!("cannot create {}: {e}", own.display()))?;
        Ok(own)
    };
    let mut findings = Vec::new();
    let subject = Subject::start(open(Models::Usual, &own("checks")?)?);
    let mut subject = match subject {
        Ok(subject) => subject,
        Err(error) => {
            findings.push(finding("starts", true, Err(error)));
            return Ok(Report { hello: None, findings });
        }
    };
    findings.push(finding("starts", true, Ok(starts(&subject.hello))));
    type Check = (&'static str, bool, fn(&mut Subject) -> Step<Seen>);
    let checks: [Check; 15] = [
        ("a planted sentence comes back as text", true, planted),
        ("with the session that it came from", false, source),
        ("k is kept", true, k_is_kept),
        ("an empty store finds nothing", true, empty),
        ("what is written is stored", true, stored),
        ("scopes are apart", true, scopes),
        ("a long session loses nothing", true, long),
        ("unicode survives", true, unicode),
        ("dates of sessions are kept", false, dates),
        ("assistant turns are seen", false, assistant),
        ("probing leaves the store as it is", true, frozen),
        ("dump holds the memories", true, dump),
        ("readback gives a session's memories", true, readback),
        ("save and load bring the store back", true, save),
        ("answers by itself", true, answer),
    ];
    for (name, required, run) in checks {
        findings.push(finding(name, required, run(&mut subject)));
    }
    subject.system.close();
    let broken = open(Models::Broken, &own("broken")?)?;
    // Libraries that swallow it leave an adapter little choice; the proxy counts it in any case.
    findings.push(finding("invalid JSON of its model is reported", false, invalid_json(broken, asked)));
    let (whole, killed) = (open(Models::Usual, &own("whole")?)?, || open(Models::Usual, &own("killed")?));
    let resumed = resume(whole, &killed, &own("run-whole")?, &own("run-killed")?)?;
    findings.push(finding("killed and resumed, it is the same", true, resumed));
    Ok(Report { hello: Some(subject.hello), findings })
}

fn starts(hello: &Hello) -> Seen {
    if hello.name.is_empty() {
        return (Outcome::No, "`hello` gives no name; give name and version".to_owned());
    }
    let packages = match hello.packages.len() {
        0 => "it names no packages: versions that it stands on would tell runs apart".to_owned(),
        many => format!("packages named: {many}"),
    };
    (Outcome::Yes, format!("{} {}; {packages}", hello.name, hello.version))
}

fn planted(subject: &mut Subject) -> Step<Seen> {
    subject.write(SCOPE, &with(&LOCKER))?;
    let found = subject.search(SCOPE, LOCKER.query, 5)?;
    match found.iter().find(|memory| holds(memory, &LOCKER)) {
        Some(memory) => yes(quoted(&memory.text)),
        None => no(format!(
            "`{}` was written and `{}` asked; {}; return the stored words as `text`, and see that `finish` waits for indexing",
            LOCKER.sentence,
            LOCKER.query,
            texts(&found)
        )),
    }
}

fn source(subject: &mut Subject) -> Step<Seen> {
    let mut told = Vec::new();
    subject.call(|system| {
        system.reset(SCOPE)?;
        for session in &with(&LOCKER) {
            told.extend(system.ingest(SCOPE, session)?.unwrap_or_default());
        }
        system.finish(SCOPE).map(|_| ())
    })?;
    let found = subject.search(SCOPE, LOCKER.query, 5)?;
    let Some(memory) = found.iter().find(|memory| holds(memory, &LOCKER)) else {
        return no("the sentence does not come back, so that its source cannot be seen");
    };
    if let Some(sources) = &memory.sources {
        return match sources.iter().any(|source| source.session == "session[1]") {
            true => yes("by the system's own word"),
            false => no(format!(
                "its sources are {sources:?}, and it was told in session[1]; repeat the ids that `ingest` sends"
            )),
        };
    }
    if told.iter().any(|event| event.memory.as_ref() == Some(&memory.id)) {
        return yes("by the events of `ingest`");
    }
    if subject.hello.can(Capability::Dump) {
        return yes("by differences of `dump`");
    }
    if memory.time.as_deref().is_some_and(|time| time.contains("2019-03-08")) {
        return yes("by the times of memories");
    }
    no(
        "perfect retrieval and the causes of a memory cannot be told; return `sources`, or events with ids from `ingest`, or offer `dump`",
    )
}

fn k_is_kept(subject: &mut Subject) -> Step<Seen> {
    subject.write(SCOPE, &with(&LOCKER))?;
    for k in [1, 2] {
        let found = subject.search(SCOPE, LOCKER.query, k)?.len();
        if found > k {
            return no(format!("{found} memories where {k} were asked for; cut the list to `k`"));
        }
    }
    yes("k 1 and 2")
}

/// A server that says in words that nothing was found would have these words shown as a memory.
fn empty(subject: &mut Subject) -> Step<Seen> {
    subject.write(SCOPE, &[])?;
    let mut found = subject.search(SCOPE, LOCKER.query, 5)?;
    found.extend(subject.dump(SCOPE)?.unwrap_or_default());
    match found.is_empty() {
        true => yes("no memories, and no error"),
        false => no(format!(
            "a store was just reset, and {}; let `reset` empty the scope, or, where this says that nothing was found, return no memories: a \
             mapping of adapters/mcp.py describes it by `none`",
            texts(&found)
        )),
    }
}

/// A server that says in words that it could not write would have lost all that it was told, unsaid.
fn stored(subject: &mut Subject) -> Step<Seen> {
    let mut seen = |sessions: &[SessionInput]| -> Step<(Vec<Memory>, Option<Vec<Memory>>)> {
        subject.write(SCOPE, sessions)?;
        Ok((subject.search(SCOPE, LOCKER.query, 5)?, subject.dump(SCOPE)?))
    };
    let (before, after) = (seen(&[])?, seen(&with(&LOCKER))?);
    let all = |(found, dump): &(Vec<Memory>, Option<Vec<Memory>>)| -> BTreeSet<String> {
        found.iter().chain(dump.iter().flatten()).map(|memory| memory.text.clone()).collect()
    };
    match all(&after).is_subset(&all(&before)) {
        false => yes("four sessions changed what is found"),
        true => no(format!(
            "four sessions were written without an error, and as in an empty store {}; report a write that failed as an error: a mapping of \
             adapters/mcp.py describes the words of one by `failed`",
            texts(&after.0)
        )),
    }
}

fn scopes(subject: &mut Subject) -> Step<Seen> {
    subject.write(SCOPE, &with(&LOCKER))?;
    let at_once = subject.hello.scopes;
    if at_once < 2 {
        subject.call(|system| system.reset(SCOPE))?;
    }
    subject.write(OTHER, &with(&BOAT))?;
    if subject.finds(OTHER, &LOCKER)? {
        return no("a memory of one scope was found in another; keep a store for each `scope`");
    }
    if at_once >= 2 && (!subject.finds(SCOPE, &LOCKER)? || subject.finds(SCOPE, &BOAT)?) {
        return no(format!(
            "`hello` says {at_once} scopes at once, and writing one changed another; say 1, or keep a store for each"
        ));
    }
    subject.call(|system| system.reset(OTHER))?;
    subject.write(OTHER, &[])?;
    match subject.finds(OTHER, &BOAT)? {
        true => no("`reset` left a memory; let it empty the scope"),
        false => yes(format!("{at_once} at once")),
    }
}

fn long(subject: &mut Subject) -> Step<Seen> {
    let places = [(0, &LOCKER), (LONG / 2, &BOAT), (LONG - 2, &BAKERY)];
    let turns = (0..LONG).map(|at| {
        let plant = places.iter().find(|(place, _)| *place == at).map(|(_, plant)| plant.sentence);
        let number = at / 2 + 1;
        match (plant, at % 2) {
            (Some(sentence), _) => turn("user", sentence),
            (None, 0) => {
                turn("user", &format!("On day {number}, {} {}", FILLER[at % 4], FILLER[(at + 1) % 4]))
            }
            (None, _) => {
                turn("assistant", "That sounds like an ordinary day; tell me more whenever you like.")
            }
        }
    });
    subject.write(SCOPE, &[session(0, turns.collect()), said(1, FILLER[3])])?;
    let mut lost = Vec::new();
    for (place, plant) in places {
        if !subject.finds(SCOPE, plant)? {
            lost.push(format!("turn {place} (`{}`)", plant.sentence));
        }
    }
    match lost.is_empty() {
        true => yes(format!("{LONG} turns: first, middle and last are found")),
        false => no(format!(
            "of {LONG} turns these were lost: {}; write a long session in parts, and report what does not fit as an error",
            lost.join(", ")
        )),
    }
}

fn unicode(subject: &mut Subject) -> Step<Seen> {
    subject.write(SCOPE, &with(&UNICODE))?;
    let found = subject.search(SCOPE, UNICODE.query, 5)?;
    match found.iter().find(|memory| memory.text.to_lowercase().contains("ζέφυρος猫")) {
        Some(memory) if holds(memory, &UNICODE) => yes(quoted(&memory.text)),
        Some(memory) => {
            no(format!("`{}` came back as `{}`; read and write UTF-8", UNICODE.sentence, memory.text))
        }
        None => {
            no(format!("`{}` does not come back; {}; read and write UTF-8", UNICODE.sentence, texts(&found)))
        }
    }
}

fn dates(subject: &mut Subject) -> Step<Seen> {
    subject.write(SCOPE, &with(&LOCKER))?;
    let found = subject.search(SCOPE, LOCKER.query, 5)?;
    let Some(memory) = found.iter().find(|memory| holds(memory, &LOCKER)) else {
        return no("the sentence does not come back, so that its date cannot be seen");
    };
    match memory.time.as_deref() {
        Some(time) if time.contains("2019-03-08") => yes(format!("`time` is {time}")),
        Some(time) => no(format!(
            "the session was of 2019-03-08, and `time` is {time}; replayed sessions must not be of today"
        )),
        None if memory.text.contains("2019") => yes("in the text"),
        None => no(
            "neither `time` nor the text has the session's date; pass `session.time` on, or write it into the first message",
        ),
    }
}

fn assistant(subject: &mut Subject) -> Step<Seen> {
    let asked = vec![turn("user", "Can you recommend a bakery?"), turn("assistant", BAKERY.sentence)];
    subject.write(SCOPE, &[said(0, FILLER[0]), session(1, asked), said(2, FILLER[1])])?;
    match subject.finds(SCOPE, &BAKERY)? {
        true => yes("a sentence of the assistant is found"),
        false => no("a sentence that only the assistant said is not found: only the user's turns are kept"),
    }
}

fn frozen(subject: &mut Subject) -> Step<Seen> {
    subject.write(SCOPE, &with(&LOCKER))?;
    let Some(before) = subject.fingerprint(SCOPE)? else {
        return not_offered("neither `fingerprint` nor `dump`");
    };
    for plant in [&LOCKER, &BOAT, &BAKERY] {
        subject.search(SCOPE, plant.query, 5)?;
    }
    match subject.fingerprint(SCOPE)? == Some(before) {
        true => yes("equal before and after three searches"),
        false => no(
            "the fingerprint changed while searching: later probes see another store; search without writing",
        ),
    }
}

fn dump(subject: &mut Subject) -> Step<Seen> {
    if !subject.hello.can(Capability::Dump) {
        return not_offered("lost memories cannot be told from memories that are not found");
    }
    subject.write(SCOPE, &with(&LOCKER))?;
    let all = subject.call(|system| system.dump(SCOPE))?;
    match all.iter().any(|memory| holds(memory, &LOCKER)) {
        true => yes(format!("{} memories", all.len())),
        false => no(format!("the planted sentence is in none of {} memories; return all of them", all.len())),
    }
}

fn readback(subject: &mut Subject) -> Step<Seen> {
    if !subject.hello.can(Capability::Readback) {
        return not_offered("perfect retrieval filters the dump by sources");
    }
    subject.write(SCOPE, &with(&LOCKER))?;
    let wanted = ["session[1]".to_owned()];
    let read = subject.call(|system| system.readback(SCOPE, &wanted))?;
    let others = |memory: &&Memory| {
        memory.sources.as_ref().is_some_and(|all| !all.iter().any(|source| source.session == wanted[0]))
    };
    match (read.iter().any(|memory| holds(memory, &LOCKER)), read.iter().filter(others).count()) {
        (true, 0) => yes(format!("{} memories", read.len())),
        (true, many) => {
            no(format!("{many} memories of other sessions are among them; return those of `sessions` alone"))
        }
        (false, _) => {
            no("the planted sentence is not among them; return all memories written from `sessions`")
        }
    }
}

fn save(subject: &mut Subject) -> Step<Seen> {
    if !subject.hello.can(Capability::Save) {
        return not_offered("after a kill the sessions are written again");
    }
    subject.write(SCOPE, &with(&LOCKER))?;
    let folder = tempfile::tempdir();
    let Ok(folder) = folder else { return not_offered("no temporary folder could be made to save into") };
    subject.call(|system| {
        system.save(SCOPE, folder.path())?;
        system.reset(SCOPE)?;
        system.load(SCOPE, folder.path())
    })?;
    match subject.finds(SCOPE, &LOCKER)? {
        true => yes("the planted sentence is there again"),
        false => no(
            "after `save`, `reset` and `load` the planted sentence is gone; drop `save` from `can`, or mend it",
        ),
    }
}

fn answer(subject: &mut Subject) -> Step<Seen> {
    if !subject.hello.can(Capability::Answer) {
        return not_offered("the model under test answers from the memories");
    }
    subject.write(SCOPE, &with(&LOCKER))?;
    let answer = subject.call(|system| system.answer(SCOPE, LOCKER.query, None))?;
    match answer.text.trim().is_empty() {
        true => no("the answer is empty"),
        false => yes(quoted(&answer.text)),
    }
}

fn invalid_json(system: Box<dyn MemorySystem>, asked: &dyn Fn() -> usize) -> Step<Seen> {
    let before = asked();
    let mut subject = match Subject::start(system) {
        Ok(subject) => subject,
        Err(error) if asked() > before => return yes(format!("{error}")),
        Err(error) => return Err(error),
    };
    let written = subject.write(SCOPE, &with(&LOCKER));
    let calls = asked() - before;
    let seen = match written {
        _ if calls == 0 => not_offered("it asked no language model"),
        Err(error) => yes(format!("{}: {}", error.op, error.message)),
        Ok(()) => {
            let stored = match subject.finds(SCOPE, &LOCKER) {
                Ok(true) => "the words of the message were stored in the place of a memory",
                Ok(false) => "nothing was stored",
                Err(_) => "searching fails",
            };
            no(format!(
                "all {calls} replies of its model were JSON that ends in the middle, no operation said so, and {stored}; an error of kind transient in \
                 the reply would have it tried again"
            ))
        }
    };
    subject.system.close();
    seen
}
