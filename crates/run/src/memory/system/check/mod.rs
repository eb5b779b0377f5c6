//! The conformance test of memory systems.
//!
//! Plants sentences with unique words in short histories and searches for them. A finding is yes, no with a remedy, or not offered. Needs
//! no benchmark; [`super::scripted_model`] can replace the system's models.

mod plants;
mod resume;

use std::path::Path;

use serde::Serialize;

use super::protocol::{Capability, Hello, Memory, MemorySystem, SystemResult};
use super::record::{digest, session_of};
use palimpsest_data::case::{Segment, Turn};
use plants::{BAKERY, BOAT, FILLER, LOCKER, LOCKER_DAY, Plant, UNICODE, holds, said, session, with};
pub use plants::{Finding, Outcome};
use plants::{Seen, finding, no, not_offered, quoted, seen, yes};
use resume::resume;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Reply to `hello`; absent if the system does not start.
    pub hello: Option<Hello>,
    pub findings: Vec<Finding>,
}

impl Report {
    pub fn passes(&self) -> bool {
        !self.findings.iter().any(|finding| finding.required && finding.outcome == Outcome::No)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Models {
    Usual,
    /// A scripted language model with truncated JSON.
    Broken,
}

/// Creates a new instance in its own folder; starts nothing.
pub type Open<'a> = dyn Fn(Models, &Path) -> Result<Box<dyn MemorySystem>, String> + 'a;

const SCOPE: &str = "check-one";
const OTHER: &str = "check-two";

/// Turns of the long session: exceeds typical contexts of embedders and extraction prompts.
const LONG: usize = 120;

struct Subject {
    system: Box<dyn MemorySystem>,
    hello: Hello,
    running: bool,
}

impl Subject {
    fn start(mut system: Box<dyn MemorySystem>) -> SystemResult<Self> {
        let hello = system.hello()?;
        Ok(Subject { system, hello, running: true })
    }

    fn call<T>(
        &mut self,
        operation: impl FnOnce(&mut dyn MemorySystem) -> SystemResult<T>,
    ) -> SystemResult<T> {
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

    /// Writes sessions into an empty scope. Returns the ids of memories in the events of `ingest`.
    fn write(&mut self, scope: &str, sessions: &[Segment]) -> SystemResult<Vec<String>> {
        self.call(|system| {
            system.reset(scope)?;
            let mut told = Vec::new();
            for session in sessions {
                let events = system.ingest(scope, &session_of(session))?;
                told.extend(events.into_iter().flatten().filter_map(|event| event.memory));
            }
            system.finish(scope).map(|_| told)
        })
    }

    fn search(&mut self, scope: &str, query: &str, k: usize) -> SystemResult<Vec<Memory>> {
        self.call(|system| system.search(scope, query, k, None)).map(|found| found.memories)
    }

    /// Writes the locker's history and asks its question.
    fn locker(&mut self) -> SystemResult<Vec<Memory>> {
        self.write(SCOPE, &with(&LOCKER))?;
        self.search(SCOPE, LOCKER.query, 5)
    }

    fn dump(&mut self) -> SystemResult<Option<Vec<Memory>>> {
        self.hello.can(Capability::Dump).then(|| self.call(|system| system.dump(SCOPE))).transpose()
    }

    /// Memories found for the locker's question, and those of a dump.
    fn found(&mut self) -> SystemResult<Vec<Memory>> {
        let mut found = self.search(SCOPE, LOCKER.query, 5)?;
        found.extend(self.dump()?.unwrap_or_default());
        Ok(found)
    }

    fn finds(&mut self, scope: &str, plant: &Plant) -> SystemResult<bool> {
        Ok(self.search(scope, plant.query, 10)?.iter().any(|memory| holds(memory, plant)))
    }

    /// `None` without fingerprints.
    fn fingerprint(&mut self) -> SystemResult<Option<String>> {
        if self.hello.can(Capability::Fingerprint) {
            return self.call(|system| system.fingerprint(SCOPE)).map(Some);
        }
        Ok(self.dump()?.map(|dump| digest(&dump)))
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

/// Name, required by the protocol, capability needed with the effect of its absence, function.
type Check = (&'static str, bool, Option<(Capability, &'static str)>, fn(&mut Subject) -> SystemResult<Seen>);

const CHECKS: [Check; 15] = [
    ("a planted sentence comes back as text", true, None, planted),
    ("with the session that it came from", false, None, source),
    ("k is kept", true, None, k_is_kept),
    ("an empty store finds nothing", true, None, empty),
    ("written sessions are stored", true, None, stored),
    ("scopes are apart", true, None, scopes),
    ("a long session loses nothing", true, None, long),
    ("unicode survives", true, None, unicode),
    ("dates of sessions are kept", false, None, dates),
    ("assistant turns are seen", false, None, assistant),
    ("probing leaves the store as it is", true, None, frozen),
    ("dump holds the memories", true, Some((Capability::Dump, NO_DUMP)), dump),
    ("readback gives a session's memories", true, Some((Capability::Readback, NO_READBACK)), readback),
    ("save and load bring the store back", true, Some((Capability::Save, NO_SAVE)), save),
    ("answers by itself", true, Some((Capability::Answer, NO_ANSWER)), answer),
];

const NO_DUMP: &str = "lost memories cannot be told from memories that are not found";
const NO_READBACK: &str = "perfect retrieval filters the dump by sources";
const NO_SAVE: &str = "after a kill the sessions are written again";
const NO_ANSWER: &str = "the model under test answers from the memories";

/// `folder` is a scratch folder. `asked` returns the number of calls to the broken model.
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
    for (name, required, needs, run) in CHECKS {
        let seen = match needs {
            Some((capability, why)) if !subject.hello.can(capability) => not_offered(why),
            _ => run(&mut subject),
        };
        findings.push(finding(name, required, seen));
    }
    subject.system.close();
    let broken = open(Models::Broken, &own("broken")?)?;
    // Not required: some libraries swallow the error, and the proxy counts it anyway.
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
        0 => "it names no packages; their versions would tell runs apart".to_owned(),
        many => format!("packages named: {many}"),
    };
    (Outcome::Yes, format!("{} {}; {packages}", hello.name, hello.version))
}

fn planted(subject: &mut Subject) -> SystemResult<Seen> {
    let found = subject.locker()?;
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

fn source(subject: &mut Subject) -> SystemResult<Seen> {
    let told = subject.write(SCOPE, &with(&LOCKER))?;
    let found = subject.search(SCOPE, LOCKER.query, 5)?;
    let Some(memory) = found.iter().find(|memory| holds(memory, &LOCKER)) else {
        return no("the sentence does not come back, so that its source cannot be seen");
    };
    if let Some(sources) = &memory.sources {
        return seen(
            sources.iter().any(|source| source.session == "session[1]"),
            "by the system's own word",
            format!(
                "its sources are {sources:?}, and it was told in session[1]; repeat the ids that `ingest` sends"
            ),
        );
    }
    if told.contains(&memory.id) {
        return yes("by the events of `ingest`");
    }
    if subject.hello.can(Capability::Dump) {
        return yes("by differences of `dump`");
    }
    seen(
        memory.time.as_deref().is_some_and(|time| time.contains(LOCKER_DAY)),
        "by the times of memories",
        "perfect retrieval and the causes of a memory cannot be told; return `sources`, or events with ids from `ingest`, or offer `dump`",
    )
}

fn k_is_kept(subject: &mut Subject) -> SystemResult<Seen> {
    subject.write(SCOPE, &with(&LOCKER))?;
    for k in [1, 2] {
        let found = subject.search(SCOPE, LOCKER.query, k)?.len();
        if found > k {
            return no(format!("{found} memories where {k} were asked for; cut the list to `k`"));
        }
    }
    yes("k 1 and 2")
}

/// Fails if a "nothing found" message is returned as a memory.
fn empty(subject: &mut Subject) -> SystemResult<Seen> {
    subject.write(SCOPE, &[])?;
    let found = subject.found()?;
    let no = format!(
        "a store was just reset, and {}; let `reset` empty the scope, or, where this says that nothing was found, return no memories: a \
         mapping of adapters/mcp.py describes it by `none`",
        texts(&found)
    );
    seen(found.is_empty(), "no memories, and no error", no)
}

/// Fails if an error message is returned as a memory, which hides a failed write.
fn stored(subject: &mut Subject) -> SystemResult<Seen> {
    subject.write(SCOPE, &[])?;
    let before = subject.found()?;
    let found = subject.locker()?;
    let dump = subject.dump()?.unwrap_or_default();
    let is_new = |memory: &Memory| !before.iter().any(|known| known.text == memory.text);
    let no = format!(
        "four sessions were written without an error, and as in an empty store {}; report a write that failed as an error: a mapping of \
         adapters/mcp.py describes the words of one by `failed`",
        texts(&found)
    );
    seen(found.iter().chain(&dump).any(is_new), "four sessions changed the memories found", no)
}

fn scopes(subject: &mut Subject) -> SystemResult<Seen> {
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
    let no = "`reset` left a memory; let it empty the scope";
    seen(!subject.finds(OTHER, &BOAT)?, format!("{at_once} at once"), no)
}

fn long(subject: &mut Subject) -> SystemResult<Seen> {
    let places = [(0, &LOCKER), (LONG / 2, &BOAT), (LONG - 2, &BAKERY)];
    let turns = (0..LONG).map(|at| match places.iter().find(|(place, _)| *place == at) {
        Some((_, plant)) => Turn::new("user", plant.sentence),
        None if at % 2 == 0 => {
            let (number, one, other) = (at / 2 + 1, FILLER[at % 4], FILLER[(at + 1) % 4]);
            Turn::new("user", format!("On day {number}, {one} {other}"))
        }
        None => Turn::new("assistant", "That sounds like an ordinary day; tell me more whenever you like."),
    });
    subject.write(SCOPE, &[session(0, turns.collect()), said(1, FILLER[3])])?;
    let mut lost = Vec::new();
    for (place, plant) in places {
        if !subject.finds(SCOPE, plant)? {
            lost.push(format!("turn {place} (`{}`)", plant.sentence));
        }
    }
    let no = format!(
        "of {LONG} turns these were lost: {}; write a long session in parts, and report what does not fit as an error",
        lost.join(", ")
    );
    seen(lost.is_empty(), format!("{LONG} turns: first, middle and last are found"), no)
}

fn unicode(subject: &mut Subject) -> SystemResult<Seen> {
    subject.write(SCOPE, &with(&UNICODE))?;
    let found = subject.search(SCOPE, UNICODE.query, 5)?;
    let written = UNICODE.sentence;
    match found.iter().find(|memory| memory.text.to_lowercase().contains("ζέφυρος猫")) {
        Some(memory) if holds(memory, &UNICODE) => yes(quoted(&memory.text)),
        Some(memory) => no(format!("`{written}` came back as `{}`; read and write UTF-8", memory.text)),
        None => no(format!("`{written}` does not come back; {}; read and write UTF-8", texts(&found))),
    }
}

fn dates(subject: &mut Subject) -> SystemResult<Seen> {
    let found = subject.locker()?;
    let Some(memory) = found.iter().find(|memory| holds(memory, &LOCKER)) else {
        return no("the sentence does not come back, so that its date cannot be seen");
    };
    match memory.time.as_deref() {
        Some(time) if time.contains(LOCKER_DAY) => yes(format!("`time` is {time}")),
        Some(time) => no(format!(
            "the session was of {LOCKER_DAY}, and `time` is {time}; replayed sessions must not be of today"
        )),
        None if memory.text.contains("2019") => yes("in the text"),
        None => no(
            "neither `time` nor the text has the session's date; pass `session.time` on, or write it into the first message",
        ),
    }
}

fn assistant(subject: &mut Subject) -> SystemResult<Seen> {
    let asked =
        vec![Turn::new("user", "Can you recommend a bakery?"), Turn::new("assistant", BAKERY.sentence)];
    subject.write(SCOPE, &[said(0, FILLER[0]), session(1, asked), said(2, FILLER[1])])?;
    let no = "a sentence that only the assistant said is not found: only the user's turns are kept";
    seen(subject.finds(SCOPE, &BAKERY)?, "a sentence of the assistant is found", no)
}

fn frozen(subject: &mut Subject) -> SystemResult<Seen> {
    subject.write(SCOPE, &with(&LOCKER))?;
    let Some(before) = subject.fingerprint()? else {
        return not_offered("neither `fingerprint` nor `dump`");
    };
    for plant in [&LOCKER, &BOAT, &BAKERY] {
        subject.search(SCOPE, plant.query, 5)?;
    }
    let no =
        "the fingerprint changed while searching: later probes see another store; search without writing";
    seen(subject.fingerprint()? == Some(before), "equal before and after three searches", no)
}

fn dump(subject: &mut Subject) -> SystemResult<Seen> {
    subject.write(SCOPE, &with(&LOCKER))?;
    let all = subject.call(|system| system.dump(SCOPE))?;
    let no = format!("the planted sentence is in none of {} memories; return all of them", all.len());
    seen(all.iter().any(|memory| holds(memory, &LOCKER)), format!("{} memories", all.len()), no)
}

fn readback(subject: &mut Subject) -> SystemResult<Seen> {
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

fn save(subject: &mut Subject) -> SystemResult<Seen> {
    subject.write(SCOPE, &with(&LOCKER))?;
    let Ok(folder) = tempfile::tempdir() else {
        return not_offered("no temporary folder could be made to save into");
    };
    subject.call(|system| {
        system.save(SCOPE, folder.path())?;
        system.reset(SCOPE)?;
        system.load(SCOPE, folder.path())
    })?;
    let no =
        "after `save`, `reset` and `load` the planted sentence is gone; drop `save` from `can`, or mend it";
    seen(subject.finds(SCOPE, &LOCKER)?, "the planted sentence is there again", no)
}

fn answer(subject: &mut Subject) -> SystemResult<Seen> {
    subject.write(SCOPE, &with(&LOCKER))?;
    let answer = subject.call(|system| system.answer(SCOPE, LOCKER.query, None))?;
    seen(!answer.text.trim().is_empty(), quoted(&answer.text), "the answer is empty")
}

fn invalid_json(system: Box<dyn MemorySystem>, asked: &dyn Fn() -> usize) -> SystemResult<Seen> {
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
        Ok(_) => {
            let stored = match subject.finds(SCOPE, &LOCKER) {
                Ok(true) => "the words of the message were stored as a memory",
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
