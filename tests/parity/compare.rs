//! `palimpsest trace --compare`, what it says is hidden, and the first token's row.

use std::collections::HashMap;

use candle_core::{Device, Tensor};
use palimpsest_core::Model;
use palimpsest_core::span::Span;
use safetensors::SafeTensors;
use serde_json::{Value as Json, json};

use super::own_text::{Files, NEW, OLD, QUERY, by_ids, text, traced};
use super::trace::shown;
use super::{TINY, fixture, numbers};

type Tensors = HashMap<String, Tensor>;

fn tensors(bytes: &[u8]) -> Tensors {
    candle_core::safetensors::load_buffer(bytes, &Device::Cpu).unwrap()
}

fn metadata(bytes: &[u8], key: &str) -> Json {
    let (_, header) = SafeTensors::read_metadata(bytes).unwrap();
    serde_json::from_str(&header.metadata().as_ref().unwrap()[key]).unwrap()
}

fn bits(x: &Tensor) -> (Vec<usize>, Vec<u8>) {
    let x = x.flatten_all().unwrap();
    let bytes = match x.to_vec1::<f32>() {
        Ok(values) => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Err(_) => x.to_vec1::<u32>().unwrap().iter().flat_map(|x| x.to_le_bytes()).collect(),
    };
    (x.dims().to_vec(), bytes)
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
    logits.iter().map(|&x| f64::from(x) - sum.ln()).collect()
}

/// Lines of the table of a row: cells separated by two spaces or more.
fn table(said: &str, row: &str) -> Vec<Vec<String>> {
    let title = format!("attention of `{row}`");
    let lines = said.lines().skip_while(|line| !line.starts_with(&title)).skip(2);
    let lines = lines.take_while(|line| !line.is_empty() && !line.starts_with('`'));
    lines
        .map(|line| {
            line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
        })
        .collect()
}

/// A text with spans in another order than that of their masses.
struct Asked {
    files: Files,
    args: Vec<String>,
}

impl Asked {
    fn new() -> Self {
        let files = Files::new();
        let file = files.write("text.txt", &text());
        let spans = [("query", QUERY), ("new", NEW), ("old", OLD)];
        let spans = spans.iter().flat_map(|(label, text)| ["--spans".to_owned(), format!("{label}={text}")]);
        let args = ["--text".to_owned(), shown(&file).to_owned()].into_iter().chain(spans).collect();
        Asked { files, args }
    }

    fn run(&self, model: &str, out: &str, more: &[&str]) -> (String, Vec<u8>) {
        let args: Vec<&str> = self.args.iter().map(String::as_str).chain(more.iter().copied()).collect();
        let (code, said, err) = traced(&fixture(model), &self.files.at(out), &args);
        assert_eq!(code, 0, "{model}: {err}");
        (said, self.files.read(out))
    }
}

#[test]
fn a_comparison_has_the_numbers_of_two_separate_traces_to_the_bit() {
    let asked = Asked::new();
    for (model, hidden) in [
        (TINY[0], "query->old"),
        ("gpt-oss-tiny", "only query->old@1..2"),
        ("gemma3-tiny", "answer->new"),
        ("qwen35-text-tiny", "query->old@2..3"),
    ] {
        let rows =
            ["--rows", "query,last,answer,each", "--logits", "2", "--generate", "4", "--top-keys", "2"];
        let knockout = ["--knockout", hidden];
        let plain = tensors(&asked.run(model, "plain", &rows).1);
        let (_, file) = asked.run(model, "blocked", &[&rows[..], &knockout].concat());
        let blocked = tensors(&file);
        let (said, both_file) = asked.run(model, "both", &[&rows[..], &knockout, &["--compare"]].concat());
        let both = tensors(&both_file);
        assert_eq!(both.len(), plain.len() + blocked.len());
        for (name, tensor) in &blocked {
            assert!(bits(tensor) == bits(&both[name]), "{model}: {name}");
        }
        for (name, tensor) in &plain {
            assert!(bits(tensor) == bits(&both[&format!("plain.{name}")]), "{model}: plain.{name}");
        }
        assert!(bits(&plain["mass"]) != bits(&blocked["mass"]), "{model}");
        for key in ["rows", "spans", "knockouts", "hidden"] {
            assert_eq!(metadata(&both_file, key), metadata(&file, key), "{model}: {key}");
        }
        // The next token's divergence by its definition.
        let last = |tensors: &Tensors| log_softmax(&tensors["logits"].to_vec2::<f32>().unwrap()[1]);
        let (p, q) = (last(&plain), last(&blocked));
        let kl: f64 = p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum();
        let found = metadata(&both_file, "compare")["kl"].as_f64().unwrap();
        assert!((found - kl).abs() < 1e-5, "{model}: {found} is not {kl}");
        // Rows in the order of the spans; the difference is that of the columns beside it.
        let rows = table(&said, "last");
        assert_eq!(
            rows.iter().take(3).map(|row| row[0].as_str()).collect::<Vec<_>>(),
            ["query", "new", "old"]
        );
        let masses = [&plain, &blocked].map(|tensors| tensors["mass"].mean(0).unwrap().mean(0).unwrap());
        let masses = masses.map(|mass| mass.to_vec2::<f32>().unwrap()[1].clone());
        for (k, row) in rows.iter().take(3).enumerate() {
            let number = |cell: usize| row[cell].parse::<f64>().unwrap();
            let expected = masses.each_ref().map(|mass| 100.0 * f64::from(mass[k]));
            assert!(
                (number(2) - expected[0]).abs() < 0.006 && (number(3) - expected[1]).abs() < 0.006,
                "{said}"
            );
            assert!((number(4) - (expected[1] - expected[0])).abs() < 0.006, "{said}");
        }
        for told in ["answer, plain:", "answer, knocked out:", "log-probability of the plain answer"] {
            assert!(said.contains(told), "{said}");
        }
    }
}

#[test]
fn what_choices_left_is_printed_of_both_passes_with_the_numbers_of_the_file() {
    let asked = Asked::new();
    for model in ["gemma3-tiny", "deepseek-v32-tiny"] {
        let compared = ["--rows", "query,last", "--knockout", "last->old", "--compare"];
        let (said, file) = asked.run(model, "both", &[&compared[..], &["--selected"]].concat());
        let title = said.lines().find(|line| line.starts_with("span ")).unwrap();
        let names = ["selected, plain", "selected, knocked out", "forgone, plain", "forgone, knocked out"];
        assert!(title.ends_with(&names.join("  ")), "{said}");
        assert_eq!(said.matches("selected: the share of the span").count(), 1, "{said}");
        let tensors = tensors(&file);
        for (r, row) in ["query", "last"].iter().enumerate() {
            let rows = table(&said, row);
            for (k, cells) in rows.iter().take(3).enumerate() {
                assert_eq!(cells.len(), 7 + names.len(), "{said}");
                let columns =
                    ["plain.selected", "selected", "plain.forgone", "forgone"].iter().zip(&cells[7..]);
                for (name, told) in columns {
                    let layers = tensors[*name].to_vec3::<f32>().unwrap();
                    let known: Vec<f32> =
                        layers.iter().map(|layer| layer[r][k]).filter(|x| !x.is_nan()).collect();
                    let mean = 100.0 * known.iter().sum::<f32>() / known.len() as f32;
                    let off = (told.parse::<f32>().unwrap() - mean).abs();
                    assert!(off < 0.006, "{model}: {row}, {name} is {mean}: {said}");
                }
            }
            // The first token, the sinks and the rest are on no axis of the file.
            assert!(rows.iter().skip(3).all(|cells| cells.len() <= 6), "{said}");
        }
        // Hidden keys are not forgone.
        let old = &table(&said, "last")[2];
        assert!(old[9].parse::<f32>().unwrap() > 0.0 && old[10] == "0.00", "{model}: {said}");
        let (said, _) = asked.run(model, "both", &compared);
        assert!(!said.contains("selected") && !said.contains("forgone"), "{said}");
    }
}

#[test]
fn the_plain_answers_loss_is_that_of_whole_passes_over_prompt_and_answer() {
    let asked = Asked::new();
    let (_, both) = asked.run(
        TINY[0],
        "both",
        &["--generate", "5", "--knockout", "query->new", "--compare", "--rows", "last"],
    );
    let answer = tensors(&both)["plain.generated"].to_vec1::<u32>().unwrap();
    assert!(!answer.is_empty());
    let model = fixture(TINY[0]);
    let prompt = Model::open(&model).unwrap().text(&text(), &[("new", NEW), ("query", QUERY)]).unwrap();
    let whole: Vec<u32> = prompt.tokens.iter().chain(&answer).copied().collect();
    let (new, query) = (prompt.overlays[0].clone(), &prompt.overlays[1]);
    let spans = [new, Span::new("behind", query.start..whole.len())];
    let log_p = |knockouts: Json| {
        let more = json!({"rows": ["last"], "logits": answer.len() + 1, "knockouts": knockouts});
        let logits =
            tensors(&by_ids(&asked.files, &model, &whole, &spans, &more, &[]))["logits"].to_vec2::<f32>();
        let told =
            logits.unwrap().iter().zip(&answer).map(|(row, &id)| log_softmax(row)[id as usize]).sum::<f64>();
        told / answer.len() as f64
    };
    let (plain, blocked) = (log_p(json!([])), log_p(json!([{"rows": "behind", "keys": "new"}])));
    let found = metadata(&both, "compare");
    let of = |key: &str| found[key].as_f64().unwrap();
    assert!((of("plain_answer_log_p") - plain).abs() < 1e-4, "{found} {plain}");
    assert!((of("log_p_drop") - (plain - blocked)).abs() < 1e-4, "{found} {plain} {blocked}");
}

#[test]
fn comparisons_of_token_ids_conversations_and_jobs_are_printed_and_one_without_a_knock_out_is_refused() {
    let asked = Asked::new();
    let (files, model) = (&asked.files, fixture(TINY[0]));
    let tokens = json!({
        "tokens": [5, 6, 7, 8, 9, 10], "spans": {"a": [1, 3], "b": [4, 6]}, "rows": ["b"],
        "knockouts": [{"rows": "b", "keys": "a"}],
    });
    let tokens = files.write("t.json", &tokens.to_string());
    let run = |args: &[&str]| traced(&model, &files.at("out"), &[args, &["--compare"]].concat());
    let (code, said, err) = run(&["--tokens", shown(&tokens)]);
    assert!(
        code == 0 && table(&said, "b")[0][3] == "0.00" && said.contains("KL(plain || knocked out)"),
        "{said} {err}"
    );
    let chat =
        json!([{"role": "user", "content": format!("{OLD}{NEW}")}, {"role": "assistant", "content": QUERY}]);
    let chat = files.write("chat.json", &chat.to_string());
    let (code, said, err) = run(&["--messages", shown(&chat), "--knockout", "last->messages[0]"]);
    assert!(code == 0 && table(&said, "last")[0][0] == "messages[0]", "{said} {err}");
    let (code, _, err) = run(&["--messages", shown(&chat)]);
    assert!(code == 1 && err.contains("nothing is knocked out") && err.contains("--knockout"), "{err}");
    let job = |knockouts: Json| {
        json!({"text": text(), "spans": {"old": OLD}, "knockouts": knockouts, "out": files.at("job.safetensors")}).to_string()
    };
    let jobs = files.write("jobs.jsonl", &job(json!([])));
    let (code, _, err) = run(&["--jobs", shown(&jobs)]);
    assert!(code == 1 && err.contains("no job has a knock-out"), "{err}");
    let jobs = files.write("jobs.jsonl", &job(json!(["last->old"])));
    let (code, said, err) = run(&["--jobs", shown(&jobs)]);
    assert!(code == 0 && said.contains(" -> 0.00"), "{said} {err}");
    let row: Json = serde_json::from_slice(&files.read("out")).unwrap();
    assert!(row["plain"]["mass"]["last"]["old"].as_f64() > row["mass"]["last"]["old"].as_f64(), "{row}");
    assert!(row["compare"]["kl"].as_f64() > Some(0.0) && row["hidden"][0]["keys"] == "old", "{row}");
    assert!(tensors(&files.read("job.safetensors")).contains_key("plain.mass"));
}

#[test]
fn knock_outs_are_said_first_and_in_the_file_with_tokens_rows_layers_and_heads() {
    let asked = Asked::new();
    let prompt = Model::open(fixture(TINY[0])).unwrap();
    let prompt = prompt.text(&text(), &[("old", OLD), ("query", QUERY)]).unwrap();
    let (n, old, query) = (prompt.tokens.len(), prompt.overlays[0].len(), prompt.overlays[1].clone());
    let from = query.start;
    for (knockout, generate, expected) in [
        (
            "query->old@1..3",
            "0",
            format!(
                "`old` ({old} tokens) is hidden from `query` and every later position ({} prompt positions from {from} on), in layers 1 \
                 to 2 of 0 to 2 and all 6 heads",
                n - from
            ),
        ),
        (
            "query->old@1..2",
            "2",
            format!(
                "`old` ({old} tokens) is hidden from `query` and every later position ({} prompt positions from {from} on, and generated \
                 tokens), in layer 1 of 0 to 2 and all 6 heads",
                n - from
            ),
        ),
        (
            "only query->old",
            "2",
            format!(
                "`old` ({old} tokens) is hidden from `query` ({} prompt positions from {from} on, not from generated tokens), in all 3 \
                 layers and all 6 heads",
                query.len()
            ),
        ),
    ] {
        let (said, file) = asked.run(TINY[0], "out", &["--knockout", knockout, "--generate", generate]);
        let line = format!("knocked out: {expected}");
        let place = said.find(&line).unwrap_or_else(|| panic!("{said} does not say {line}"));
        assert!(place < said.find("attention of").unwrap(), "{said}");
        let hidden = &metadata(&file, "hidden")[0];
        assert_eq!((&hidden["text"], &hidden["knockout"]), (&json!(expected), &json!(knockout)));
        assert_eq!((&hidden["key_tokens"], &hidden["first_row"]), (&json!(old), &json!(from)));
    }
    let (said, file) = asked.run(TINY[0], "out", &[]);
    let (_, header) = SafeTensors::read_metadata(&file).unwrap();
    assert!(!said.contains("knocked out") && !header.metadata().as_ref().unwrap().contains_key("hidden"));
}

#[test]
fn the_first_token_and_sinks_have_rows_of_their_own_and_the_rows_sum_to_100() {
    let files = Files::new();
    for name in [TINY[0], "gpt-oss-tiny", "gemma3-tiny", "qwen35-text-tiny"] {
        let model = fixture(name);
        let file = files.write("text.txt", &text());
        // No span holds the first token.
        let (old, new) = (OLD[4..].trim_end(), NEW.trim_end());
        let named = [format!("old={old}"), format!("new={new}")];
        let out = files.at("out.safetensors");
        let args = ["--text", shown(&file), "--spans", &named[0], "--spans", &named[1], "--rows", "last"];
        let (code, said, err) = traced(&model, &out, &args);
        assert_eq!(code, 0, "{err}");
        let found = tensors(&files.read("out.safetensors"));
        let prompt = Model::open(&model).unwrap().text(&text(), &[("old", old), ("new", new)]).unwrap();
        let (n, spans) = (prompt.tokens.len(), prompt.overlays.clone());
        // Spans that tile the prompt.
        let tiles = [
            Span::new("first", 0..1),
            Span::new("a", 1..spans[0].start),
            Span::new("old", spans[0].range()),
            Span::new("b", spans[0].end..spans[1].start),
            Span::new("new", spans[1].range()),
            Span::new("c", spans[1].end..n),
        ];
        let tiled = by_ids(&files, &model, &prompt.tokens, &tiles, &json!({"rows": ["last"]}), &[]);
        let tiled = tensors(&tiled);
        let mass = |tile: usize| numbers(&tiled["mass"].narrow(3, tile, 1).unwrap());
        assert_eq!(numbers(&found["first_token"]), mass(0), "{name}");
        assert_eq!(numbers(&tiled["first_token"]), mass(0), "{name}");
        let mean = |values: &[f32]| 100.0 * values.iter().sum::<f32>() / values.len() as f32;
        let mut expected = vec![
            ("old", mean(&mass(2))),
            ("new", mean(&mass(4))),
            ("(first token)", mean(&mass(0))),
            ("(elsewhere)", mean(&mass(1)) + mean(&mass(3)) + mean(&mass(5))),
        ];
        if name == "gpt-oss-tiny" {
            expected.insert(3, ("(learned sinks)", mean(&numbers(&found["sink"]))));
        }
        let rows = table(&said, "last");
        assert_eq!(rows.len(), expected.len(), "{said}");
        let place = |row: &Vec<String>| {
            if row[0].starts_with("(learned") || row[0].starts_with("(else") { 1 } else { 2 }
        };
        for (row, (label, mass)) in rows.iter().zip(expected) {
            let told: f32 = row[place(row)].parse().unwrap();
            assert!(row[0] == label && (told - mass).abs() < 0.01, "{name}: {label} is {mass}: {said}");
        }
        let sum: f32 = rows.iter().map(|row| row[place(row)].parse::<f32>().unwrap()).sum();
        assert!((sum - 100.0).abs() < 0.03, "{sum}: {said}");
        assert!(rows[0].iter().any(|cell| cell.starts_with('L') && cell.contains(" H")), "{said}");
    }
    // A span from the beginning holds it, and says so.
    let asked = Asked::new();
    let (said, file) = asked.run(TINY[0], "out", &["--rows", "last"]);
    let first = numbers(&tensors(&file)["first_token"]);
    let mean = 100.0 * first.iter().sum::<f32>() / first.len() as f32;
    assert!(
        said.contains(&format!("`old` holds the prompt's first token, which alone gets {mean:.2}")),
        "{said}"
    );
    assert!(!said.contains("(first token)"), "{said}");
}
