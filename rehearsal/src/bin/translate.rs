//! The translator by hand.
//!
//! ```text
//! translate MODULE.ptx ENTRY          prints the kernel in C (compile it with -I rehearsal/kernel)
//! translate --check MODULE.ptx...     translates every kernel and lists what is not understood; exits with 1
//!                                     if there is anything
//! ```

use std::collections::BTreeSet;
use std::process::ExitCode;

use rehearsal::ptx::{Module, parse};
use rehearsal::translate::translate;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["--check", paths @ ..] if !paths.is_empty() => check(paths),
        [path, entry] if !path.starts_with('-') => print(path, entry),
        _ => Err("usage: translate MODULE.ptx ENTRY | translate --check MODULE.ptx...".to_owned()),
    };
    match done {
        Ok(code) => code,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::from(2)
        }
    }
}

fn read(path: &str) -> Result<Module, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    parse(&text).map_err(|error| format!("{path}: {error}"))
}

fn print(path: &str, entry: &str) -> Result<ExitCode, String> {
    let module = read(path)?;
    let translation = translate(&module, entry).ok_or_else(|| {
        let known: Vec<_> = module.entries().collect();
        format!("{path} has no kernel {entry}; it has {}", known.join(", "))
    })?;
    print!("{}", translation.c);
    Ok(ExitCode::SUCCESS)
}

fn check(paths: &[&str]) -> Result<ExitCode, String> {
    let (mut kernels, mut unknown) = (0, 0);
    for path in paths {
        let module = read(path)?;
        // A device function is part of every kernel that calls it; each line is listed once.
        let mut listed = BTreeSet::new();
        for entry in module.entries() {
            kernels += 1;
            for found in translate(&module, entry).map_or(Vec::new(), |translation| translation.unknown) {
                if listed.insert((found.line, found.text.clone())) {
                    println!("{path}, line {}, {entry}: {} ({})", found.line, found.text, found.why);
                }
            }
        }
        unknown += listed.len();
    }
    println!("{kernels} kernels in {} modules, {unknown} instructions not understood", paths.len());
    Ok(if unknown == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
