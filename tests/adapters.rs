//! The adapters of memory systems that need no package, by their own tests: `python3 tests/adapters/test_adapters.py`.

use std::path::Path;
use std::process::Command;

#[test]
fn the_helper_plain_retrieval_and_mcp_servers_keep_the_protocol() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/adapters/test_adapters.py");
    let run = Command::new("python3").arg(&script).output().expect("python3 runs the tests of adapters");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}
