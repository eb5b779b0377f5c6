//! `documents` of a chat request, each a prompt span named by its title.
//!
//! Passed to templates that support documents; the span is then the text. Other templates get them before the text of the last user
//! message, each with a heading that belongs to its span.

use serde::Deserialize;

use super::attention_request::is_label;
use super::error::{ApiError, ensure};
use super::sent::{Part, Sent};
use palimpsest_core::text::{Document, Speaker};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DocumentField {
    title: Option<String>,
    text: String,
    #[serde(rename = "doc_id")]
    _id: Option<serde_json::Value>,
}

impl DocumentField {
    fn title(&self) -> &str {
        self.title.as_deref().unwrap_or_default().trim()
    }
}

#[derive(Debug, Clone, Default)]
pub struct Documents {
    pub listed: Vec<Document>,
    pub labels: Vec<String>,
}

impl Documents {
    /// `native`: the template supports documents; otherwise they are inlined into the last user message.
    pub fn new(fields: Vec<DocumentField>, native: bool, sent: &mut [Sent]) -> Result<Documents, ApiError> {
        for (i, field) in fields.iter().enumerate() {
            let name = format!("documents[{i}].text");
            ensure(!field.text.trim().is_empty(), name, "is empty; leave the document out")?;
        }
        let mut labels: Vec<String> = Vec::with_capacity(fields.len());
        for (i, field) in fields.iter().enumerate() {
            let title = Some(field.title()).filter(|title| is_label(title));
            let named = title.map_or_else(|| format!("document[{i}]"), str::to_owned);
            let same = fields[..i].iter().filter(|other| other.title() == named).count();
            labels.push(if same > 0 { format!("{named} ({})", same + 1) } else { named });
        }
        if fields.is_empty() || native {
            let listed = fields.into_iter();
            let listed =
                listed.map(|field| Document { title: field.title.unwrap_or_default(), text: field.text });
            return Ok(Documents { listed: listed.collect(), labels });
        }
        let last = sent.iter_mut().rev().find(|one| one.turn.role == Speaker::User);
        let last = last.ok_or_else(|| {
            ApiError::at("documents", "stand before the user's last message, and there is none; send one")
        })?;
        let part = |(i, field): (usize, &DocumentField)| {
            let heading = match field.title() {
                "" => format!("Document {}", i + 1),
                title => title.to_owned(),
            };
            let text = format!("# {heading}\n{}\n\n", field.text.trim());
            Part { text, label: labels[i].clone(), named: true }
        };
        last.lead = fields.iter().enumerate().map(part).collect();
        Ok(Documents { listed: Vec::new(), labels })
    }
}
