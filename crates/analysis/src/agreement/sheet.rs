//! The raters' sheet as CSV and as an HTML page, with the key beside it.
//!
//! ```text
//! sheet.csv    one row per item, with empty columns `rating` and `comment`
//! sheet.html   the same as a self-contained offline page
//! key.json     maps items to answers (see `key`)
//! ```

use std::path::{Path, PathBuf};

use super::draw::Drawn;
use super::key;
use palimpsest_core::files::write_atomically;
use palimpsest_data::ground::csv::{CsvTable, shown_as_text};
use palimpsest_data::ground::order::unique;
use palimpsest_run::runs::condition::label;

pub const CSV: &str = "sheet.csv";
pub const HTML: &str = "sheet.html";

const PAGE: &str = include_str!("sheet.html");
const DATA: &str = "/*DATA*/";
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
    let mut table = CsvTable::of(items)
        .column("item", |item| &item.item)
        .column("rating", |_| "")
        .column("comment", |_| "")
        .column("query", |item| shown_as_text(&item.query))
        .column("answer", |item| shown_as_text(&item.answer));
    for name in unique(items.iter().flat_map(|item| &item.notes).map(|(name, _)| name)) {
        table = table.column(format!("note_{name}"), |item| {
            let note = item.notes.iter().find(|(own, _)| own == name);
            note.map_or("".into(), |(_, text)| shown_as_text(text))
        });
    }
    let table = table
        .column("rubric", |item| shown_as_text(&item.rubric))
        .column("condition", |_| shown_as_text(label(&key.condition)));
    [BYTE_ORDER_MARK.as_bytes(), &table.bytes()].concat()
}

fn html(title: &str, drawn: &Drawn) -> String {
    let title = format!("{title}, condition {}", label(&drawn.key.condition));
    page(
        &serde_json::json!({ "sheet": drawn.key.sheet, "title": title, "most": drawn.key.most, "items": drawn.items }),
    )
}

/// The page of a sheet. `data`: `sheet` (its name), `title`, `items` and either `most` (the best score, or null) or `labels`, a list of
/// `{word, kind}` whose kind is good, bad or open. An item has `item` (its id), `notes` (pairs of name and text), `rubric`, and `query`
/// and `answer`, or `fields`: texts `{field, text}` that raters may edit.
pub fn page(data: &serde_json::Value) -> String {
    // Inside a script element only `<` needs escaping.
    PAGE.replacen(DATA, &data.to_string().replace('<', "\\u003c"), 1)
}
