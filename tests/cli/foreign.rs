//! Text files as other programs save them.
use super::*;

fn utf16(text: &str) -> Vec<u8> {
    format!("\u{feff}{text}").encode_utf16().flat_map(u16::to_le_bytes).collect()
}

#[test]
fn a_byte_order_mark_shifts_no_span() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let traced = |mark: &str, out: &str| {
        std::fs::write(at("text.txt"), format!("{mark}the red house is warm")).unwrap();
        std::fs::write(at("spans.json"), format!("{mark}{{\"colour\": \"red\", \"first\": [0, 3]}}"))
            .unwrap();
        let mut command = command(["trace", "--rows", "first", "--spans", "place=8..13", "--model"]);
        command.arg(model()).arg("--text").arg(at("text.txt")).arg("--spans").arg(at("spans.json"));
        command.arg("--out").arg(at(out));
        done(ended(command));
        std::fs::read(at(out)).unwrap()
    };
    assert!(traced("", "plain.safetensors") == traced("\u{feff}", "marked.safetensors"));
}

#[test]
fn utf16_is_refused_by_name_wherever_a_text_is_given() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| shown(&root.path().join(name)).to_owned();
    let (file, out) = (at("given"), at("out"));
    std::fs::write(root.path().join("text.txt"), "the red house").unwrap();
    let (model, text) = (shown(&model()).to_owned(), at("text.txt"));
    let folder = root.path().join("prompts");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("session.j2"), utf16("{{ turns }}")).unwrap();
    let trace = ["trace", "--model", &model, "--out", &out];
    let run = ["run", "--data", "sample", "--sessions", "3", "--model", &model, "--out", &out];
    let config = format!("plain={file}");
    let commands: [Vec<&str>; 11] = [
        [&trace[..], &["--text", &file]].concat(),
        [&trace[..], &["--messages", &file]].concat(),
        [&trace[..], &["--tokens", &file]].concat(),
        [&trace[..], &["--jobs", &file]].concat(),
        [&trace[..], &["--text", &text, "--spans", &file]].concat(),
        vec!["data", "check", &file],
        vec!["build", "dose", &file, "--out", &out],
        vec!["build", "dose", "slots", "--distractors", &file, "--out", &out],
        vec!["import", "--stale", &file, "--data", "sample", "--out", &out, "--model-name", "m"],
        [&run[..], &["--prompts", shown(&folder)]].concat(),
        [&run[..], &["--memory", "plain=true", "--memory-config", &config]].concat(),
    ];
    for command in commands {
        for text in ["[{\"uid\": \"a\"}]", "猫"] {
            std::fs::write(root.path().join("given"), utf16(text)).unwrap();
            let refused = palimpsest(&command);
            assert_eq!(refused.code, Some(1), "{command:?}: {}{}", refused.out, refused.err);
            assert!(
                refused.err.contains("UTF-16") && refused.err.contains("iconv"),
                "{command:?}: {}",
                refused.err
            );
        }
    }
}
