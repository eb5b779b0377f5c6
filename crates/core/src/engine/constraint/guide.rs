//! State of one answer within a grammar.

use std::sync::Arc;

use llguidance::Matcher;

use super::vocabulary::{Constraint, ConstraintError, Starts};

pub(in crate::engine) struct Guide {
    constraint: Arc<Constraint>,
    stage: Stage,
}

enum Stage {
    /// No marker yet; `tail` is the recent text.
    Free {
        tail: Vec<u8>,
    },
    /// The marker had to come first and did not.
    Passed,
    Kept(Box<Matcher>),
}

impl Guide {
    pub fn new(constraint: &Arc<Constraint>) -> Self {
        let stage = match constraint.starts() {
            Starts::AtOnce => Stage::Kept(Box::new(constraint.matcher())),
            Starts::At { .. } => Stage::Free { tail: Vec::new() },
        };
        Guide { constraint: Arc::clone(constraint), stage }
    }

    /// True if tokens are masked.
    pub fn is_kept(&self) -> bool {
        matches!(self.stage, Stage::Kept(_))
    }

    /// Text of tokens, without special tokens.
    pub fn bytes(&self, tokens: &[u32]) -> Vec<u8> {
        let trie = self.constraint.trie();
        let plain = tokens.iter().filter(|&&token| !trie.is_special_token(token));
        plain.flat_map(|&token| trie.token(token).iter().copied()).collect()
    }

    /// Masks disallowed tokens in logits (vocab). Returns false if none is left: the answer ends here.
    pub fn mask(&mut self, logits: &mut [f32]) -> Result<bool, ConstraintError> {
        let Stage::Kept(matcher) = &mut self.stage else { return Ok(true) };
        let allowed =
            matcher.compute_mask_or_eos().map_err(|error| self.constraint.lost(&error.to_string()))?;
        let mut any = false;
        for (token, logit) in logits.iter_mut().enumerate() {
            match token < allowed.len() && allowed.get(token) {
                true => any = true,
                false => *logit = f32::NEG_INFINITY,
            }
        }
        if !any && !matcher.is_accepting().unwrap_or(false) && !matcher.is_stopped() {
            return Err(self.constraint.lost("no token of the vocabulary continues it"));
        }
        Ok(any)
    }

    pub fn push(&mut self, token: u32) -> Result<(), ConstraintError> {
        match &mut self.stage {
            Stage::Passed => Ok(()),
            Stage::Kept(matcher) => {
                matcher.consume_token(token).map_err(|error| self.constraint.lost(&error.to_string()))
            }
            Stage::Free { .. } => {
                let bytes = self.bytes(&[token]);
                self.push_free(&bytes)
            }
        }
    }

    /// Takes answer bytes that came with the end of a thought; returns whether they may begin the answer.
    pub fn push_bytes(&mut self, bytes: &[u8]) -> Result<bool, ConstraintError> {
        match &mut self.stage {
            Stage::Passed => Ok(true),
            Stage::Free { .. } => self.push_free(bytes).map(|()| true),
            Stage::Kept(matcher) => {
                let tokens = self.constraint.trie().greedy_tokenize(bytes);
                let lost = |error: anyhow::Error| self.constraint.lost(&error.to_string());
                let fits = matcher.validate_tokens(&tokens).map_err(lost)? == tokens.len();
                if fits {
                    matcher.consume_tokens(&tokens).map_err(lost)?;
                }
                Ok(fits)
            }
        }
    }

    /// Searches for the marker and starts the grammar there.
    fn push_free(&mut self, bytes: &[u8]) -> Result<(), ConstraintError> {
        let (Stage::Free { tail }, Starts::At { marker, at_start }) =
            (&mut self.stage, self.constraint.starts())
        else {
            return Ok(());
        };
        let marker = marker.as_bytes();
        tail.extend_from_slice(bytes);
        if *at_start {
            let space = tail.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            tail.drain(..space);
            let shorter = tail.len().min(marker.len());
            if tail.get(..shorter) != marker.get(..shorter) {
                self.stage = Stage::Passed;
                return Ok(());
            }
        }
        while let Some(at) = tail.windows(marker.len().max(1)).position(|window| window == marker) {
            // A call that starts inside a token with a different continuation is plain text.
            let call = tail.get(at..).unwrap_or_default();
            let mut matcher = self.constraint.matcher();
            let tokens = self.constraint.trie().greedy_tokenize(call);
            let lost = |error: anyhow::Error| self.constraint.lost(&error.to_string());
            if matcher.validate_tokens(&tokens).map_err(lost)? == tokens.len() {
                matcher.consume_tokens(&tokens).map_err(lost)?;
                self.stage = Stage::Kept(Box::new(matcher));
                return Ok(());
            }
            tail.drain(..=at);
        }
        let kept = tail.len().min(marker.len().saturating_sub(1));
        tail.drain(..tail.len() - kept);
        Ok(())
    }

    /// True if the answer is complete and cannot continue.
    pub fn must_end(&mut self) -> bool {
        match &self.stage {
            Stage::Kept(matcher) => matcher.is_stopped() && !matcher.is_error(),
            Stage::Free { .. } | Stage::Passed => false,
        }
    }

    pub fn tokens(&self, text: &[u8]) -> Vec<u32> {
        self.constraint.trie().greedy_tokenize(text)
    }

    pub fn spell(&self, text: &str) -> Option<u32> {
        self.constraint.trie().greedy_tokenize(text.as_bytes()).first().copied()
    }

    pub fn lost(&self, reason: &str) -> ConstraintError {
        self.constraint.lost(reason)
    }
}
