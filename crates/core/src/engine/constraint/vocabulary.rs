//! Compiles grammars against a model's vocabulary.

use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use llguidance::api::{ParserLimits, StopReason, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};

use crate::text::Tokenizer;

/// Compile timeout.
const LONGEST: Duration = Duration::from_secs(5);

/// Maximum concurrent compilations. One that timed out counts until it ends.
const MOST_AT_ONCE: usize = 4;

/// Stack size of a compile thread; only what is used takes memory. A schema takes some 5 KB a level, and at most 2,000 levels with the
/// targets of its references (`schema_limits`).
const STACK: usize = 256 << 20;

/// Maximum grammar size in bytes, schemas included.
const LONGEST_TEXT: usize = 1 << 20;

/// Per token about 20 ms of lexing and 3 ms of parsing; 100 MB of lexer states.
fn limits() -> ParserLimits {
    ParserLimits { max_lexer_states: 50_000, verbose_errors: false, ..ParserLimits::default() }
}

/// A constraint cannot be compiled or followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // said by the names
pub enum ConstraintError {
    #[error("{0}")]
    Refused(String),
    #[error("it takes more than {} s to prepare; make it smaller", LONGEST.as_secs())]
    TooSlow,
    #[error("{MOST_AT_ONCE} others are being prepared; try again later")]
    Busy,
    #[error("the answer cannot be kept to `{name}`: {reason}; make it simpler")]
    Lost { name: String, reason: String },
}

/// A vocabulary as a byte trie.
pub struct GrammarVocabulary {
    factory: ParserFactory,
    compiling: AtomicUsize,
}

impl std::fmt::Debug for GrammarVocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarVocabulary").finish_non_exhaustive()
    }
}

/// Start of a constraint within an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Starts {
    /// At the first token.
    AtOnce,
    /// At this marker, which begins the grammar; text before it is unconstrained.
    At {
        /// Marker text.
        marker: String,
        /// True if the marker must come first.
        at_start: bool,
    },
}

/// A compiled grammar; each answer clones its state.
pub struct Constraint {
    /// Never modified, only cloned.
    prototype: Mutex<Matcher>,
    env: TokEnv,
    starts: Starts,
    name: String,
}

impl std::fmt::Debug for Constraint {
    /// Omits the grammar, which is client data.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint")
            .field("name", &self.name)
            .field("starts", &self.starts)
            .finish_non_exhaustive()
    }
}

/// Counts as one running compilation until dropped.
struct CompileSlot(Arc<GrammarVocabulary>);

impl Drop for CompileSlot {
    fn drop(&mut self) {
        self.0.compiling.fetch_sub(1, Ordering::Relaxed);
    }
}

impl GrammarVocabulary {
    /// A trie for a tokeniser, `width` logits and these stop tokens. [`ConstraintError::Refused`] if the vocabulary is unusable.
    pub fn new(tokenizer: &Tokenizer, width: usize, stop: &[u32]) -> Result<Self, ConstraintError> {
        let made = panic::catch_unwind(AssertUnwindSafe(|| Self::build(tokenizer, width, stop)));
        made.unwrap_or_else(|_| Err(refused("the model's vocabulary cannot be searched byte by byte")))
    }

    fn build(tokenizer: &Tokenizer, width: usize, stop: &[u32]) -> Result<Self, ConstraintError> {
        let special = |text: &[u8]| [&[TokTrie::SPECIAL_TOKEN_MARKER], text].concat();
        let mut words: Vec<Vec<u8>> = tokenizer
            .token_bytes()
            .into_iter()
            .take(width)
            .map(|token| if token.special { special(&token.bytes) } else { token.bytes })
            .collect();
        // Padding rows of the output head.
        words.resize(width, Vec::new());
        let mut ends: Vec<u32> = stop.iter().copied().filter(|&token| (token as usize) < width).collect();
        for &token in &ends {
            if let Some(word) = words
                .get_mut(token as usize)
                .filter(|word| word.first().is_none_or(|&first| first != TokTrie::SPECIAL_TOKEN_MARKER))
            {
                *word = special(word);
            }
        }
        if ends.is_empty() {
            // The matcher requires an end token; this one has no logit.
            ends.push(u32::try_from(words.len()).unwrap_or(u32::MAX));
            words.push(special(b"<end>"));
        }
        let count = u32::try_from(words.len()).map_err(|_| refused("the vocabulary is too large"))?;
        let trie = TokTrie::from(&TokRxInfo::new(count, ends.first().copied().unwrap_or(0)), &words);
        let trie = trie.with_eos_tokens(&ends);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let made = ParserFactory::new(
            &env,
            InferenceCapabilities::default(),
            &llguidance::earley::SlicedBiasComputer::general_slices(),
        );
        let mut factory = made.map_err(|error| refused(&error.to_string()))?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(GrammarVocabulary { factory, compiling: AtomicUsize::new(0) })
    }

    /// Compiles a grammar in llguidance's Lark syntax; `name` is used in errors. Fails if the grammar is unsupported or times out.
    pub fn compile(
        self: &Arc<Self>,
        grammar: String,
        starts: Starts,
        name: &str,
    ) -> Result<Constraint, ConstraintError> {
        if grammar.len() > LONGEST_TEXT {
            let (bytes, most) = (grammar.len(), LONGEST_TEXT);
            return Err(refused(&format!("it has {bytes} bytes, and at most {most} can be enforced")));
        }
        let place = CompileSlot(Arc::clone(self));
        if self.compiling.fetch_add(1, Ordering::Relaxed) >= MOST_AT_ONCE {
            return Err(ConstraintError::Busy);
        }
        let (sender, made) = mpsc::channel();
        let work = move || {
            let matcher = panic::catch_unwind(AssertUnwindSafe(|| place.0.matcher(grammar)));
            // Free the slot before replying.
            drop(place);
            // The receiver may have timed out.
            let _ = sender.send(matcher.unwrap_or_else(|_| Err(refused("it makes the matcher fail"))));
        };
        let thread = thread::Builder::new().name("grammar".to_owned()).stack_size(STACK).spawn(work);
        thread.map_err(|error| refused(&error.to_string()))?;
        let matcher = made.recv_timeout(LONGEST).map_err(|_| ConstraintError::TooSlow)??;
        Ok(Constraint {
            prototype: Mutex::new(matcher),
            env: self.factory.tok_env().clone(),
            starts,
            name: name.to_owned(),
        })
    }

    fn matcher(&self, grammar: String) -> Result<Matcher, ConstraintError> {
        let parser = self.factory.create_parser(TopLevelGrammar::from_lark(grammar));
        let mut matcher = Matcher::new(parser);
        // The first mask detects unsatisfiable grammars.
        match matcher.compute_mask_or_eos() {
            Ok(_) => Ok(matcher),
            // The error text starts with the stop reason; the reason itself is lost.
            Err(error) if error.to_string().starts_with(&StopReason::NoExtensionBias.to_string()) => {
                Err(refused("no answer satisfies it"))
            }
            Err(error) => Err(refused(&error.to_string())),
        }
    }
}

impl Constraint {
    pub(super) fn starts(&self) -> &Starts {
        &self.starts
    }

    pub(super) fn trie(&self) -> &TokTrie {
        self.env.tok_trie()
    }

    pub(super) fn matcher(&self) -> Matcher {
        let prototype = self.prototype.lock().unwrap_or_else(PoisonError::into_inner);
        let copy = panic::catch_unwind(AssertUnwindSafe(|| prototype.deep_clone()));
        copy.unwrap_or_else(|_| Matcher::new(Err(anyhow::Error::msg("its state cannot be copied"))))
    }

    pub(super) fn lost(&self, reason: &str) -> ConstraintError {
        ConstraintError::Lost { name: self.name.clone(), reason: first_line(reason) }
    }
}

fn refused(reason: &str) -> ConstraintError {
    ConstraintError::Refused(first_line(reason))
}

/// First line of a matcher's error, without developer hints and grammar positions.
fn first_line(text: &str) -> String {
    const SCHEMA: &str = "failed to compile JSON schema:";
    let text = text.rsplit_once(SCHEMA).map_or(text, |(_, reason)| reason);
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('<'));
    let mut line = lines.next().unwrap_or("it cannot be enforced").trim_end_matches(':').to_owned();
    // Regex errors name the cause on a later line.
    if let Some(error) = lines.find(|line| line.starts_with("error:")) {
        line = format!("{line}, {error}");
    }
    line.chars().take(300).collect()
}
