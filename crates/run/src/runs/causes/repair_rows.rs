//! Rows that a repair of a cache read again, in rows of causes.

use std::fmt;
use std::str::FromStr;

use palimpsest_core::engine::LaterRows;
use serde::{Deserialize, Serialize};

/// Rows of a history that a repair read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepairedRows {
    /// Later rows asked for; null for all.
    pub k: LaterRows,
    /// The session's own rows and the later ones.
    pub recomputed: usize,
}

/// [`LaterRows`] as written: a number, or `all`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Later(pub LaterRows);

impl fmt::Display for Later {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            LaterRows::Most(rows) => rows.fmt(f),
            LaterRows::All => f.pad("all"),
        }
    }
}

impl FromStr for Later {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "all" => Ok(Later(LaterRows::All)),
            number => number.parse().map(LaterRows::Most).map(Later).map_err(|_| {
                format!("`{text}` is neither a number of rows nor `all`; write numbers with commas, such as 0,16,64,256,all")
            }),
        }
    }
}

/// Identifies what stands in a session's place: the neutral text, and how many later rows were read again if not all by an exact prefill.
pub(super) fn in_place(neutral: Option<&String>, rows: Option<RepairedRows>) -> Option<String> {
    let repaired = rows.map(|rows| format!(", repaired {}", Later(rows.k))).unwrap_or_default();
    neutral.map(|neutral| neutral.clone() + &repaired)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_rows_are_read_and_written() {
        for (text, rows) in
            [("0", LaterRows::Most(0)), (" 256", LaterRows::Most(256)), ("all", LaterRows::All)]
        {
            assert_eq!(text.parse(), Ok(Later(rows)));
            assert_eq!(Later(rows).to_string(), text.trim());
        }
        for wrong in ["", "-1", "1.5", "most"] {
            assert!(wrong.parse::<Later>().unwrap_err().contains("0,16,64,256,all"), "{wrong}");
        }
        let all = RepairedRows { k: LaterRows::All, recomputed: 9 };
        assert_eq!(serde_json::to_string(&all).unwrap(), r#"{"k":null,"recomputed":9}"#);
        for row in [all, RepairedRows { k: LaterRows::Most(16), recomputed: 20 }] {
            let text = serde_json::to_string(&row).unwrap();
            assert_eq!(serde_json::from_str::<RepairedRows>(&text).unwrap(), row);
        }
        assert!(LaterRows::Most(usize::MAX) < LaterRows::All);
    }
}
