//! The page: one HTML file whose Content-Security-Policy allows its own script and style, and this server.
//!
//! Sources are plain JavaScript and CSS in `page/`. [`Parts::Folder`] rereads them on each request during development.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use crate::api::page::BASE_STYLE;

#[path = "page/parts.rs"]
mod parts;

const TITLE: &str = "palimpsest view";

#[derive(Debug, Clone, Default)]
pub enum Parts {
    #[default]
    Own,
    /// Read from a folder on each request, for development.
    Folder(PathBuf),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    pub html: String,
    pub policy: String,
}

impl Parts {
    /// The page, with embedded replies if it has to work without a server.
    pub fn page(&self, embedded: Option<&str>) -> std::io::Result<Page> {
        let (html, style, script) = match self {
            Parts::Own => {
                let scripts: String = parts::SCRIPTS.iter().map(|(_, script)| *script).collect();
                (Cow::from(parts::HTML), format!("{BASE_STYLE}{}", parts::STYLE), scripts)
            }
            Parts::Folder(folder) => read(folder)?,
        };
        let data = match embedded {
            Some(json) => {
                format!("<script type=\"application/json\" id=\"embedded\">{}</script>\n", harmless(json))
            }
            None => String::new(),
        };
        let digest = |text: &str| STANDARD.encode(Sha256::digest(text));
        let policy = format!(
            "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; img-src data: blob:; base-uri 'none'; \
             form-action 'none'",
            digest(&script),
            digest(&style)
        );
        // Files have no headers, so the policy goes into a meta tag.
        let meta = match embedded {
            Some(_) => {
                let policy = policy.replace("connect-src 'self'", "connect-src 'none'");
                format!("<meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n")
            }
            None => String::new(),
        };
        let html = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n{meta}<meta name=\"viewport\" content=\"width=device-width, \
             initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n<title>{TITLE}</title>\n\
             <style>{style}</style>\n</head>\n<body>\n{html}{data}<script>{script}</script>\n</body>\n</html>\n"
        );
        Ok(Page { html, policy: format!("{policy}; frame-ancestors 'none'") })
    }
}

/// Escapes JSON for a script element: `<` occurs only in strings.
fn harmless(json: &str) -> String {
    json.replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

/// Body, style and scripts (by file name) of a folder.
fn read(folder: &Path) -> std::io::Result<(Cow<'static, str>, String, String)> {
    let text = |name: &str| std::fs::read_to_string(folder.join(name));
    let entries = std::fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
    let mut scripts: Vec<PathBuf> = entries.iter().map(std::fs::DirEntry::path).collect();
    scripts.retain(|path| path.extension().is_some_and(|end| end == "js"));
    scripts.sort();
    let script = scripts.iter().map(std::fs::read_to_string).collect::<std::io::Result<String>>()?;
    Ok((text("page.html")?.into(), format!("{BASE_STYLE}{}", text("page.css")?), script))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_in_a_file_cannot_end_its_script_and_is_read_back_as_it_was() {
        let text = "</script><script>alert(1)</script><!-- \u{2028}";
        let json = serde_json::json!({"replies": {"/api/runs": text}}).to_string();
        let page = Parts::Own.page(Some(&json)).unwrap().html;
        assert_eq!(page.matches("</script>").count(), 2, "the data's and the page's own");
        let data = page.split("id=\"embedded\">").nth(1).unwrap().split("</script>").next().unwrap();
        let value: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!(value["replies"]["/api/runs"], text);
        assert!(page.contains("connect-src 'none'"));
    }
}
