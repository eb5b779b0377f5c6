//! Runs the Python tests of the memory-system adapters that need no package: `python3 tests/adapters/test_adapters.py`.

use std::path::Path;
use std::process::Command;

fn python(script: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/adapters").join(script);
    let run = Command::new("python3").arg(&script).output().expect("python3 runs the tests of adapters");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}

#[test]
fn the_helper_plain_retrieval_and_mcp_servers_keep_the_protocol() {
    python("test_adapters.py");
}

#[test]
fn e02_e03_e14_noise_words_and_refused_batches_of_servers() {
    python("test_servers.py");
}
