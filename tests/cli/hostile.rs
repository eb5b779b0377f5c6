//! Run folders that a stranger made: links, FIFOs and names that lead elsewhere. No command follows them, and none changes a file outside.
#![cfg(unix)]

use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use super::*;

const ROWS: [&str; 9] = [
    "answers.jsonl",
    "verdicts.jsonl",
    "replies.jsonl",
    "rubrics.jsonl",
    "labels.jsonl",
    "causes.jsonl",
    "contrast-causes.jsonl",
    "why.jsonl",
    "costs.jsonl",
];

/// Both shards of a run of two cases.
fn shards(root: &Path) -> [PathBuf; 2] {
    ["0/2", "1/2"].map(|shard| {
        let dir = root.join(format!("shard-{}", &shard[..1]));
        done(run(&dir, &["--only", "SR", "--limit", "2", "--shard", shard]));
        dir
    })
}

/// Runs the commands that write into a run folder, or read one; each has to end within a minute. Returns their outputs.
fn all_commands(dir: &Path, other: &Path) -> Vec<(&'static str, Ended)> {
    let (merged, page) = (dir.with_file_name("merged"), dir.with_file_name("page.html"));
    let judge = format!("local:{}", model().display());
    let commands: [(&str, Vec<&str>); 8] = [
        ("merge", vec![shown(&merged), shown(dir), shown(other)]),
        ("judge", vec![shown(dir), "--judge", &judge]),
        ("causes", vec![shown(dir), "--controls", "1"]),
        ("why", vec![shown(dir)]),
        ("lens", vec![shown(dir)]),
        ("table", vec![shown(dir)]),
        ("figures", vec![shown(dir)]),
        ("view", vec![shown(dir), "--html", shown(&page)]),
    ];
    let mut all = Vec::new();
    for (name, args) in commands {
        let mut child = command([name]).args(args).spawn().unwrap();
        let begun = Instant::now();
        while child.try_wait().unwrap().is_none() {
            if begun.elapsed() > Duration::from_secs(60) {
                child.kill().unwrap();
                panic!("{name} does not end");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let output = child.wait_with_output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        all.push((
            name,
            Ended { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) },
        ));
    }
    all
}

#[test]
fn a_link_in_place_of_rows_is_refused_and_its_target_kept() {
    let root = tempfile::tempdir().unwrap();
    let [dir, other] = shards(root.path());
    let precious = root.path().join("precious");
    for file in ROWS {
        // Read as rows, its only line would be torn.
        std::fs::write(&precious, "a line without an end").unwrap();
        let (path, kept) = (dir.join(file), root.path().join("kept"));
        let was_there = std::fs::rename(&path, &kept).is_ok();
        symlink(&precious, &path).unwrap();
        let ended = all_commands(&dir, &other);
        assert_eq!(std::fs::read(&precious).unwrap(), b"a line without an end", "{file}");
        assert!(path.is_symlink(), "{file}");
        let (name, merged) = &ended[0];
        assert!(
            merged.code == Some(1) && merged.err.contains("symbolic link"),
            "{file} {name}: {}",
            merged.err
        );
        assert!(!root.path().join("merged").exists());
        std::fs::remove_file(&path).unwrap();
        if was_there {
            std::fs::rename(&kept, &path).unwrap();
        }
    }
}

#[test]
fn a_linked_subfolder_loses_no_file() {
    let root = tempfile::tempdir().unwrap();
    let [dir, other] = shards(root.path());
    let outside = root.path().join("outside");
    for name in ["attention", "cases", "causes", "figures", "lens", "memory"] {
        std::fs::create_dir_all(&outside).unwrap();
        for file in [".tmpabc", "curves.csv", "kept"] {
            std::fs::write(outside.join(file), "kept").unwrap();
        }
        let before = files(&outside);
        let (path, kept) = (dir.join(name), root.path().join("kept"));
        let was_there = std::fs::rename(&path, &kept).is_ok();
        symlink(&outside, &path).unwrap();
        all_commands(&dir, &other);
        assert_eq!(files(&outside), before, "{name}");
        std::fs::remove_file(&path).unwrap();
        if was_there {
            let _ = std::fs::remove_dir_all(&path);
            std::fs::rename(&kept, &path).unwrap();
        }
    }
}

#[test]
fn a_refused_merge_changes_no_shard() {
    let root = tempfile::tempdir().unwrap();
    let [dir, other] = shards(root.path());
    // A torn last row, and a why row of another form.
    let answers = dir.join("answers.jsonl");
    let torn = [std::fs::read(&answers).unwrap(), b"{\"case\": ".to_vec()].concat();
    std::fs::write(&answers, torn).unwrap();
    std::fs::write(dir.join("attention/.tmp1"), "unfinished").unwrap();
    std::fs::write(other.join("why.jsonl"), "{\"label\": 3}\n{\"label\": 3}\n").unwrap();
    let before = [files(&dir), files(&other)];
    let merged = palimpsest(["merge", shown(&root.path().join("merged")), shown(&dir), shown(&other)]);
    assert_eq!(merged.code, Some(1), "{}", merged.out);
    assert!(merged.err.contains("why.jsonl line 1"), "{}", merged.err);
    assert_eq!([files(&dir), files(&other)], before);
}

#[test]
fn the_next_merge_removes_what_a_killed_one_left() {
    let root = tempfile::tempdir().unwrap();
    let [dir, other] = shards(root.path());
    let left = root.path().join(".merged.merging-abc");
    std::fs::create_dir(&left).unwrap();
    std::fs::write(left.join("plan.jsonl"), "").unwrap();
    let of_another = root.path().join(".else.merging-abc");
    std::fs::create_dir(&of_another).unwrap();
    done(palimpsest(["merge", shown(&root.path().join("merged")), shown(&dir), shown(&other)]));
    assert!(!left.exists() && of_another.exists());
}

#[test]
fn a_row_cannot_name_a_file_outside_and_a_fifo_is_no_file() {
    let root = tempfile::tempdir().unwrap();
    let [dir, other] = shards(root.path());
    let answers = dir.join("answers.jsonl");
    let rows = std::fs::read_to_string(&answers).unwrap();
    let mut row: serde_json::Value = serde_json::from_str(rows.lines().next().unwrap()).unwrap();
    let elsewhere = root.path().join("elsewhere.safetensors");
    std::fs::copy(dir.join(row["attention"].as_str().unwrap()), &elsewhere).unwrap();
    for name in ["/dev/zero", "../elsewhere.safetensors", shown(&elsewhere)] {
        row["attention"] = name.into();
        std::fs::write(&answers, format!("{row}\n")).unwrap();
        let lens = palimpsest(["lens", shown(&dir)]);
        assert_eq!(lens.code, Some(1), "{name}: {}", lens.out);
        assert!(lens.err.contains("does not name a file inside"), "{name}: {}", lens.err);
        all_commands(&dir, &other);
    }
    std::fs::write(&answers, rows).unwrap();
    for file in ["answers.jsonl", "verdicts.jsonl", "trials.jsonl", "run.json", "run.lock"] {
        let path = dir.join(file);
        let kept = std::fs::read(&path).ok();
        let _ = std::fs::remove_file(&path);
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        all_commands(&dir, &other);
        std::fs::remove_file(&path).unwrap();
        if let Some(bytes) = kept {
            std::fs::write(&path, bytes).unwrap();
        }
    }
    let fifo = root.path().join("model.gguf");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let refused = palimpsest(["run", "--data", "sample", "--model", shown(&fifo), "--out", "x"]);
    assert!(refused.code == Some(1) && refused.err.contains("FIFO"), "{}", refused.err);
}
