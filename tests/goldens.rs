//! Goldens of the files every command writes and of the replies to each kind of request, on tiny models.
//!
//! `goldens/steps.txt` lists the commands, `goldens/requests.jsonl` the requests; `goldens/{commands,requests,help}.txt` have one line per
//! file: the digest of its text without decimal fractions, their number, and two means of them. An intended change updates these lines in
//! its own commit: run the tests with `PALIMPSEST_GOLDENS=write`. On a difference the masked files are kept in `target/tmp/goldens`;
//! compare them with those of another commit.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use palimpsest_core::digest::sha256;
use regex::Regex;
use serde_json::Value;

use crate::{cli, serve};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens")
}

/// Replaces text that depends on machine, time or port.
struct Masks(Vec<(Regex, &'static str)>);

impl Masks {
    fn new(home: &Path, port: &str) -> Self {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let mut masks = vec![
            (regex::escape(home.to_str().unwrap()), "HOME"),
            (regex::escape(fixtures.to_str().unwrap()), "MODELS"),
            (format!("127.0.0.1:{port}"), "HOST"),
        ];
        for (pattern, with) in [
            (r#""seconds": ?[0-9.e+-]+"#, "SECONDS"),
            (r#""(created|started_at|completed_at)": ?("[^"]*"|[0-9]+)"#, "TIME"),
            (r#""id": ?"(chatcmpl|cmpl|call)[-_][^"]*""#, "ID"),
            (r#""machine": ?\{[^}]*\}"#, "MACHINE"),
            // The environment that the tests run in.
            (r#""memory_env": ?\[[^\]]*\]"#, "ENVIRONMENT"),
            // Masses of a page, in bytes: the last bit depends on the machine's products.
            (r#""data":\["[A-Za-z0-9+/=",]*\]"#, "BYTES"),
            (r"[0-9.,]+ s \(prefill [0-9.,]+, decode [0-9.,]+\)", "COST"),
            (r"[0-9.,]+ s; mean of", "COST; mean of"),
        ] {
            masks.push((pattern.to_owned(), with));
        }
        // An endpoint's name holds the digest of its address.
        let of_endpoint = r#"(?s)"(identity_sha256|digest)": "[0-9a-f]{64}""#;
        masks.push((of_endpoint.to_owned(), "DIGEST"));
        Masks(masks.into_iter().map(|(pattern, with)| (Regex::new(&pattern).unwrap(), with)).collect())
    }

    fn masked(&self, text: &str) -> String {
        let (digests, others) = self.0.split_last().unwrap();
        let mut text = text.to_owned();
        for (pattern, with) in others {
            text = pattern.replace_all(&text, *with).into_owned();
        }
        let of_endpoint = text.contains("HOST") && text.contains("\"palimpsest run 1\"");
        if of_endpoint { digests.0.replace_all(&text, digests.1).into_owned() } else { text }
    }
}

/// Masked contents by name: one file, or all files of a kind in a large folder.
type Found = BTreeMap<String, Vec<u8>>;

fn add(found: &mut Found, name: String, bytes: &[u8], masks: &Masks) {
    let masked = match std::str::from_utf8(bytes) {
        Ok(text) => masks.masked(text).into_bytes(),
        Err(_) => bytes.to_vec(),
    };
    found.entry(name).or_default().extend(masked);
}

fn add_folder(found: &mut Found, home: &Path, masks: &Masks) {
    let mut paths = Vec::new();
    let mut folders = vec![home.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { paths.push(path) }
        }
    }
    paths.sort();
    for path in paths {
        let (name, kind) = (path.file_name().unwrap(), path.extension().unwrap_or_default());
        // Skips timings, pictures derived from the SVG, and float bits, which tests/bits.rs and tests/parity.rs check.
        let left_out = ["run.lock", "costs.jsonl"].iter().any(|left_out| name == *left_out)
            || ["pdf", "png", "safetensors"].iter().any(|left_out| kind == *left_out);
        if left_out {
            continue;
        }
        let relative = path.strip_prefix(home).unwrap();
        let parent = relative.parent().unwrap();
        let many = parent.components().count() > 1 || parent.to_str().unwrap().ends_with("figures");
        let name = match many {
            true => format!("{}/*.{}", parent.display(), kind.display()),
            false => relative.display().to_string(),
        };
        add(found, name, &std::fs::read(&path).unwrap(), masks);
    }
}

/// A file split into text and decimal fractions: sums differ in the last bits between processors.
#[derive(Debug, Clone, PartialEq)]
struct Golden {
    /// Digest of the text with each fraction replaced by `#`.
    digest: String,
    fractions: usize,
    /// Mean magnitude of the fractions, and their mean weighted by position, which detects swaps.
    magnitude: f64,
    weighted: f64,
}

impl Golden {
    fn of(bytes: &[u8], fraction: &Regex) -> Self {
        let Ok(text) = std::str::from_utf8(bytes) else {
            let digest = sha256(bytes)[..16].to_owned();
            return Golden { digest, fractions: 0, magnitude: 0.0, weighted: 0.0 };
        };
        let values: Vec<f64> =
            fraction.find_iter(text).map(|found| found.as_str().parse().unwrap()).collect();
        let rest = fraction.replace_all(text, "#");
        let n = values.len().max(1) as f64;
        let magnitudes = values.iter().fold(0.0, |sum, value| sum + value.abs());
        let places = values.iter().zip(1..).fold(0.0, |sum, (value, place)| sum + f64::from(place) * value);
        Golden {
            digest: sha256(rest.as_bytes())[..16].to_owned(),
            fractions: values.len(),
            magnitude: magnitudes / n,
            weighted: places / (n * (n + 1.0) / 2.0),
        }
    }

    fn read(line: &str) -> (String, Self) {
        let mut words = line.splitn(5, ' ');
        let mut word = || words.next().unwrap();
        let digest = word().to_owned();
        let fractions = word().parse().unwrap();
        let (magnitude, weighted) = (word().parse().unwrap(), word().parse().unwrap());
        (word().to_owned(), Golden { digest, fractions, magnitude, weighted })
    }

    fn line(&self, name: &str) -> String {
        format!("{} {} {:.6e} {:.6e} {name}\n", self.digest, self.fractions, self.magnitude, self.weighted)
    }

    /// Equal up to the last bits of sums: fractions within a thousandth of their magnitude.
    fn is(&self, other: &Golden) -> bool {
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-3 * self.magnitude + 1e-9;
        self.digest == other.digest
            && self.fractions == other.fractions
            && near(self.magnitude, other.magnitude)
            && near(self.weighted, other.weighted)
    }
}

/// Compares with the goldens of this part, or writes them.
fn hold(part: &str, found: &Found) {
    let path = folder().join(format!("{part}.txt"));
    let fraction = Regex::new(r"-?[0-9]+\.[0-9]+(e[+-]?[0-9]+)?|-?[0-9]+e-[0-9]+").unwrap();
    let now: BTreeMap<&String, Golden> =
        found.iter().map(|(name, bytes)| (name, Golden::of(bytes, &fraction))).collect();
    if std::env::var_os("PALIMPSEST_GOLDENS").is_some_and(|asked| asked == "write") {
        let lines: String = now.iter().map(|(name, golden)| golden.line(name)).collect();
        std::fs::write(&path, lines).unwrap();
    }
    let before = std::fs::read_to_string(&path).unwrap();
    let before: BTreeMap<String, Golden> = before.lines().map(Golden::read).collect();
    let differ: Vec<String> = now
        .iter()
        .filter(|(name, golden)| before.get(**name).is_none_or(|before| !before.is(golden)))
        .map(|(name, golden)| golden.line(name))
        .collect();
    let gone: Vec<&String> = before.keys().filter(|name| !now.contains_key(name)).collect();
    if !differ.is_empty() || !gone.is_empty() {
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("goldens").join(part);
        std::fs::create_dir_all(&kept).unwrap();
        for (name, bytes) in found {
            std::fs::write(kept.join(name.replace(['/', '*'], "_")), bytes).unwrap();
        }
        panic!("{part}: differ {differ:#?}, gone {gone:#?}; the masked files are in {}", kept.display());
    }
}

#[test]
fn commands_write_what_they_wrote() {
    let home = tempfile::tempdir().unwrap();
    let mut endpoint = Command::new("python3")
        .arg(folder().join("endpoint.py"))
        .arg(home.path().join("requests.txt"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut port = String::new();
    BufReader::new(endpoint.stdout.take().unwrap()).read_line(&mut port).unwrap();
    let port = port.trim();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let fixtures = fixtures.to_str().unwrap();
    let masks = Masks::new(home.path(), port);
    let mut found = Found::new();
    let steps = std::fs::read_to_string(folder().join("steps.txt")).unwrap();
    for step in steps.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let words = step.split(' ').map(|word| {
            word.replace("MODELS", fixtures)
                .replace("ENDPOINT", &format!("http://127.0.0.1:{port}/v1#scripted"))
                .replace("SCRIPTED", &format!("python3 {fixtures}/memory/scripted.py"))
        });
        let mut command = cli::command(words);
        command.current_dir(home.path());
        let ended = cli::ended(command);
        assert_eq!(ended.code, Some(0), "{step}\n{}", ended.err);
        add(&mut found, format!("$ {step}"), ended.out.as_bytes(), &masks);
    }
    endpoint.kill().unwrap();
    endpoint.wait().unwrap();
    // Judge calls run in parallel.
    let requests = std::fs::read_to_string(home.path().join("requests.txt")).unwrap();
    let mut requests: Vec<&str> = requests.lines().collect();
    requests.sort_unstable();
    std::fs::write(home.path().join("requests.txt"), requests.join("\n")).unwrap();
    add_folder(&mut found, home.path(), &masks);
    hold("commands", &found);
}

#[test]
fn requests_are_answered_as_they_were() {
    let masks = Masks::new(Path::new("no home"), "no port");
    let mut found = Found::new();
    let mut servers: BTreeMap<String, serve::Served> = BTreeMap::new();
    let requests = std::fs::read_to_string(folder().join("requests.jsonl")).unwrap();
    for (nth, line) in requests.lines().enumerate() {
        let request: Value = serde_json::from_str(line).unwrap();
        let model = request["model"].as_str().unwrap();
        let server = servers.entry(model.to_owned()).or_insert_with(|| serve::serve(model));
        let path = request["path"].as_str().unwrap();
        let reply = server.post(path, request["body"].clone()).ok();
        let text = serde_json::to_string_pretty(&reply).unwrap();
        add(&mut found, format!("{} {model} {path}", nth + 1), text.as_bytes(), &masks);
    }
    hold("requests", &found);
}

#[test]
fn help_says_what_it_said() {
    let mut found = Found::new();
    let masks = Masks::new(Path::new("no home"), "no port");
    let mut commands = vec![Vec::new()];
    while let Some(command) = commands.pop() {
        let mut args: Vec<String> = command.clone();
        args.push("-h".to_owned());
        let short = cli::done(cli::palimpsest(&args));
        args.pop();
        args.push("--help".to_owned());
        let helped = cli::done(cli::palimpsest(&args));
        assert!(short.err.is_empty() && helped.err.is_empty(), "{args:?}: help is standard output");
        assert!(!short.out.is_empty(), "{args:?}");
        let help = helped.out;
        let listed = help.split_once("\nCommands:\n").map_or("", |(_, after)| after);
        let listed = listed.split_once("\n\n").map_or(listed, |(list, _)| list);
        for line in listed.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   ")) {
            let name = line.split_whitespace().next().unwrap();
            if name != "help" {
                commands.push(command.iter().cloned().chain([name.to_owned()]).collect());
            }
        }
        add(&mut found, format!("palimpsest {}", args.join(" ")), help.as_bytes(), &masks);
    }
    hold("help", &found);
}
