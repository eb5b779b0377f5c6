//! What the documents say of our kernels for cards is of the kernels as they are.

use std::path::Path;

use sha2::{Digest, Sha256};

#[test]
fn the_reckoning_in_the_documents_is_of_the_kernels_as_they_are() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let said = std::fs::read_to_string(root.join("docs/gpu.md")).unwrap();
    for name in ["attention.cu", "masses.cu", "rows.cu", "tensor_cores.cuh"] {
        let text = std::fs::read(root.join("crates/core/src/attention/backends/cuda").join(name)).unwrap();
        let digest: String = Sha256::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(
            said.contains(&format!("{name} with sha256 {digest}")),
            "docs/gpu.md reckons another {name}; run scripts/kernel_reckoning.py --write"
        );
    }
}
