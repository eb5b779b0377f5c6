//! The raters' sheet as CSV and as an HTML page, with the key beside it.
//!
//! ```text
//! sheet.csv    one row per item, with empty columns `rating` and `comment`
//! sheet.html   the same as a self-contained offline page
//! key.json     maps items to answers (see `key`)
//! ```

use std::path::{Path, PathBuf};

use csv::ByteRecord;

use super::draw::Drawn;
use super::key;
use palimpsest_core::files::write_atomically;
use palimpsest_data::ground::csv::{shown_as_text, write as write_csv};
use palimpsest_data::ground::order::unique;
use palimpsest_run::runs::condition::label;

pub const CSV: &str = "sheet.csv";
pub const HTML: &str = "sheet.html";

const PAGE: &str = include_str!("sheet.html");
const DATA: &str = "/*DATA*/";
const NOTE: &str = "note_";
/// Makes spreadsheets read the file as UTF-8.
const BYTE_ORDER_MARK: &str = "\u{feff}";

pub fn write(folder: &Path, title: &str, drawn: &Drawn) -> anyhow::Result<Vec<PathBuf>> {
    let occupied = folder.join(key::FILE).exists();
    anyhow::ensure!(!occupied, "{} holds a sheet already; draw into a new folder", folder.display());
    std::fs::create_dir_all(folder).map_err(super::io(folder))?;
    let key = format!("{:#}\n", serde_json::json!(drawn.key));
    let files = [(CSV, csv(drawn)), (HTML, html(title, drawn).into_bytes()), (key::FILE, key.into_bytes())];
    let mut written = Vec::new();
    for (name, bytes) in files {
        let path = folder.join(name);
        write_atomically(&path, &bytes).map_err(super::io(&path))?;
        written.push(path);
    }
    Ok(written)
}

fn csv(Drawn { items, key }: &Drawn) -> Vec<u8> {
    let names = unique(items.iter().flat_map(|item| &item.notes).map(|(name, _)| name.as_str()));
    let heads = names.iter().map(|name| format!("{NOTE}{name}"));
    let fixed = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let head: Vec<String> =
        fixed(&["item", "rating", "comment", "query", "answer"]).into_iter().chain(heads).collect();
    let mut rows = vec![[head, fixed(&["rubric", "condition"])].concat()];
    for item in items {
        let note = |name: &&str| item.notes.iter().find(|(own, _)| own == name).map_or("", |(_, text)| text);
        let cells = [item.query.as_str(), &item.answer].into_iter().chain(names.iter().map(note));
        let cells = cells
            .chain([item.rubric.as_str(), label(&key.condition)])
            .map(|text| shown_as_text(text).into_owned());
        rows.push(fixed(&[item.item.as_str(), "", ""]).into_iter().chain(cells).collect());
    }
    [BYTE_ORDER_MARK.as_bytes(), &write_csv(rows.into_iter().map(ByteRecord::from))].concat()
}

fn html(title: &str, drawn: &Drawn) -> String {
    let title = format!("{title}, condition {}", label(&drawn.key.condition));
    let data = serde_json::json!({ "sheet": drawn.key.sheet, "title": title, "most": drawn.key.most, "items": drawn.items });
    // Inside a script element only `<` needs escaping.
    PAGE.replacen(DATA, &data.to_string().replace('<', "\\u003c"), 1)
}
