//! Data checks and their findings, printed by `palimpsest data check`. Findings are advisory.

use std::fmt;

use crate::ground::order::{sorted_unique, unique};
use crate::ground::words::counted;
use serde::{Serialize, Serializer};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Error,
    /// May be legitimate.
    Warning,
}

impl Severity {
    pub fn name(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
        }
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Check {
    pub name: &'static str,
    pub severity: Severity,
    pub about: &'static str,
}

impl Check {
    pub const fn error(name: &'static str, about: &'static str) -> Self {
        Check { name, severity: Severity::Error, about }
    }

    pub const fn warning(name: &'static str, about: &'static str) -> Self {
        Check { name, severity: Severity::Warning, about }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub check: &'static Check,
    /// Absent for single-file datasets and for findings about all files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    pub case: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<usize>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub probes: Vec<String>,
    pub message: String,
}

/// Maximum number of listed segments or probes.
const PLACES: usize = 4;

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { check, file, case, segments, probes, message } = self;
        write!(f, "{}: ", check.name)?;
        if let Some(file) = file {
            write!(f, "{file}: ")?;
        }
        write!(f, "case `{case}`")?;
        let segments = || segments.iter().map(|index| format!("[{index}]")).collect();
        let places: Vec<String> = if probes.is_empty() { segments() } else { probes.clone() };
        for (at, place) in places.iter().take(PLACES).enumerate() {
            write!(f, "{}{place}", if at == 0 { " " } else { ", " })?;
        }
        write!(f, "{}: {message}", if places.len() > PLACES { ", …" } else { "" })
    }
}

impl Serialize for Check {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name)
    }
}

impl Finding {
    pub fn new(check: &'static Check, case: &str, message: impl Into<String>) -> Self {
        let (case, message) = (case.to_owned(), message.into());
        Finding { check, file: None, case, segments: Vec::new(), probes: Vec::new(), message }
    }

    #[must_use]
    pub fn in_file(self, file: &str) -> Self {
        Finding { file: Some(file.to_owned()), ..self }
    }

    #[must_use]
    pub fn at(self, segments: impl IntoIterator<Item = usize>) -> Self {
        Finding { segments: segments.into_iter().collect(), ..self }
    }

    #[must_use]
    pub fn of<S: AsRef<str>>(self, probes: impl IntoIterator<Item = S>) -> Self {
        Finding { probes: probes.into_iter().map(|probe| probe.as_ref().to_owned()).collect(), ..self }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gold {
    /// Accepted answers; empty if the data gives none as text.
    pub texts: Vec<String>,
    /// The answer is a near quotation of the evidence.
    pub quoted: bool,
}

/// Groups by check in order of first appearance, with the number of distinct probes.
pub fn by_check(findings: &[Finding]) -> Vec<(&'static Check, Vec<&Finding>, usize)> {
    let group = |check: &'static Check| {
        let of: Vec<&Finding> = findings.iter().filter(|finding| finding.check == check).collect();
        let probes = of.iter().flat_map(|finding| finding.probes.iter().map(|probe| (&finding.case, probe)));
        let count = sorted_unique(probes).len();
        (check, of, count)
    };
    unique(findings.iter().map(|finding| finding.check)).into_iter().map(group).collect()
}

/// One line per check with its count, then its first `examples` findings.
pub fn listed_by_check(findings: &[Finding], examples: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for (check, of, probes) in by_check(findings) {
        let questions =
            if probes > of.len() { format!(" ({})", counted(probes, "question")) } else { String::new() };
        let (severity, count) = (check.severity.name(), of.len());
        lines.push(format!("{severity}: {}: {count} {}{questions}", check.name, check.about));
        lines.extend(of.iter().take(examples).map(|finding| format!("  {finding}")));
        if examples > 0 && count > examples {
            lines.push(format!("  and {} more", count - examples));
        }
    }
    lines
}

const QUOTED: usize = 60;

pub fn quote(text: &str) -> String {
    match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{:?}…", text.get(..end).unwrap_or_default()),
        None => format!("{text:?}"),
    }
}
