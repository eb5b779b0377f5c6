//! The page: one HTML file whose Content-Security-Policy allows its own script and style, and this server.
//!
//! Sources are plain JavaScript and CSS in `page/`. [`Parts`] can reread them on each request.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use crate::api::page::BASE_STYLE;

const TITLE: &str = "palimpsest";
const HTML: &str = include_str!("page/page.html");
/// Its last part explains the words that the page uses.
const TUTORIAL: &str = include_str!("../../../../docs/tutorial.md");
const GLOSSARY: &str = "## Fourteen words\n";
/// In the page's body; definitions follow it.
const WORDS: &str = "<!-- words -->";
/// In the page's body; an overview follows it.
const OVERVIEW: &str = "<section id=\"overview-view\" aria-label=\"Overview\" hidden>";
/// Follows the shared style.
const STYLE: &str = include_str!("page/page.css");
/// In order of assembly.
const SCRIPTS: [&str; 18] = [
    include_str!("page/10-base.js"),
    include_str!("page/11-address.js"),
    include_str!("page/20-api.js"),
    include_str!("page/21-rows.js"),
    include_str!("page/30-scene.js"),
    include_str!("page/31-picture.js"),
    include_str!("page/35-overview.js"),
    include_str!("page/40-grid.js"),
    include_str!("page/41-table.js"),
    include_str!("page/50-case.js"),
    include_str!("page/51-strip.js"),
    include_str!("page/52-map.js"),
    include_str!("page/53-texts.js"),
    include_str!("page/55-memory.js"),
    include_str!("page/60-ask.js"),
    include_str!("page/70-compare.js"),
    include_str!("page/80-take.js"),
    include_str!("page/90-main.js"),
];

/// The page's sources: its own, or those of a folder, read on each request during development.
#[derive(Debug, Clone, Default)]
pub struct Parts(pub Option<PathBuf>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    pub html: String,
    pub policy: String,
}

impl Parts {
    /// The page; if it has to work without a server, with embedded replies and an overview, which is shown also without JavaScript.
    pub fn page(&self, embedded: Option<(&str, &str)>) -> std::io::Result<Page> {
        let (html, style, script) = match &self.0 {
            None => (HTML.to_owned(), STYLE.to_owned(), SCRIPTS.concat()),
            Some(folder) => read(folder)?,
        };
        let html = match embedded {
            Some((_, overview)) => {
                html.replace(OVERVIEW, &format!("{}{overview}", OVERVIEW.replace(" hidden", "")))
            }
            None => html,
        };
        let html = html.replacen(WORDS, &definitions(), 1);
        let style = format!("{BASE_STYLE}{style}");
        // `<` occurs only in strings, where it must not end the element.
        let data = embedded
            .map(|(json, _)| json.replace('<', "\\u003c"))
            .map(|json| format!("<script type=\"application/json\" id=\"embedded\">{json}</script>\n"));
        let data = data.unwrap_or_default();
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

/// The tutorial's glossary as HTML. Its links point into the documents and are left out.
fn definitions() -> String {
    let words = TUTORIAL.split_once(GLOSSARY).map_or("", |(_, words)| words);
    let of = |word: &str| {
        let (name, text) = word.split_once('\n')?;
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let (first, linked) = text.split_once(" ([").unwrap_or((&text, ""));
        let text = [first, linked.split_once("))").map_or("", |(_, rest)| rest)].concat();
        let text = text.replace('*', "");
        let text = text.split('`').enumerate().map(|(at, part)| match at % 2 {
            0 => part.to_owned(),
            _ => format!("<code>{part}</code>"),
        });
        Some(format!("<dt>{name}</dt><dd>{}</dd>\n", text.collect::<String>()))
    };
    words.split("### ").skip(1).filter_map(of).collect()
}

/// Body, style and scripts (by file name) of a folder.
fn read(folder: &Path) -> std::io::Result<(String, String, String)> {
    let text = |name: &str| std::fs::read_to_string(folder.join(name));
    let entries = std::fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
    let mut scripts: Vec<PathBuf> = entries.iter().map(std::fs::DirEntry::path).collect();
    scripts.retain(|path| path.extension().is_some_and(|end| end == "js"));
    scripts.sort();
    let script = scripts.iter().map(std::fs::read_to_string).collect::<std::io::Result<String>>()?;
    Ok((text("page.html")?, text("page.css")?, script))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_explains_the_fourteen_words_of_the_tutorial() {
        let words = definitions();
        assert_eq!(words.matches("<dt>").count(), 14);
        let named = "<dt>Span</dt><dd>A named, half-open range of tokens of a prompt: a session, the question, the template's text. \
                     Spans tile the prompt.</dd>";
        assert!(words.contains(named), "{words}");
        assert!(
            words.contains("call it <code>probe</code>") && !words.contains("](") && !words.contains('*')
        );
        assert!(Parts::default().page(None).unwrap().html.contains(&words));
    }
}
