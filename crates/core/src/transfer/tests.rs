//! Only this module may copy between host and device.

use std::path::{Path, PathBuf};

const ROOMS: [&str; 5] =
    ["src/attention", "src/engine", "src/model/layers", "src/model/decoder.rs", "src/model/cache.rs"];

const CROSSINGS: [&str; 10] = [
    ".to_vec0",
    ".to_vec1",
    ".to_vec2",
    ".to_vec3",
    ".to_scalar",
    ".to_device(",
    "Tensor::from_vec",
    "Tensor::from_slice",
    "Tensor::new",
    "Tensor::arange",
];

/// Allowed copies, of CPU tensors or unavoidable: (file, call).
const ALLOWED: [(&str, &str); 12] = [
    // Slice kernels, CPU only.
    ("src/attention/backends/cpu.rs", "Tensor::from_vec"),
    ("src/attention/backends/cpu/key_weights.rs", "Tensor::from_vec"),
    ("src/attention/backends/cpu/lengths.rs", "Tensor::from_vec"),
    ("src/attention/backends/cpu/segment_sums.rs", "Tensor::from_vec"),
    ("src/attention/backends/cpu/value_sums.rs", "Tensor::from_vec"),
    ("src/attention/delta.rs", "Tensor::from_vec"),
    ("src/attention/delta/cpu.rs", "Tensor::from_vec"),
    ("src/attention/delta/cpu.rs", ".to_vec1"),
    ("src/model/layers/half_weight.rs", "Tensor::from_vec"),
    ("src/model/layers/projection.rs", "Tensor::from_vec"),
    ("src/model/layers/packed_matmul.rs", "Tensor::from_vec"),
    // Once per token: the index of the largest logit.
    ("src/engine/sampler.rs", ".to_scalar"),
];

fn sources(path: &Path, found: &mut Vec<PathBuf>) {
    let Ok(folder) = std::fs::read_dir(path) else {
        found.push(path.to_owned());
        return;
    };
    folder.for_each(|entry| sources(&entry.unwrap().path(), found));
}

fn code(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    let tests = ["\n#[cfg(test)]\nmod tests {", "\n#[cfg(test)]\npub(super) mod tests {"];
    let end = tests.iter().filter_map(|tests| text.find(tests)).min().unwrap_or(text.len());
    text[..end].to_owned()
}

#[test]
fn tensors_cross_between_host_and_device_here_and_where_it_is_listed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    ROOMS.iter().for_each(|room| sources(&root.join(room), &mut files));
    assert!(files.len() > 20, "{files:?}");
    let mut found: Vec<(String, &str)> = Vec::new();
    for file in files {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        // Flash kernels get device tensors; tests are exempt.
        if name == "tests.rs" {
            continue;
        }
        let place = file.strip_prefix(root).unwrap().to_string_lossy().replace('\\', "/");
        let code = code(&file);
        for crossing in CROSSINGS {
            if code.lines().any(|line| !line.trim_start().starts_with("//") && line.contains(crossing)) {
                found.push((place.clone(), crossing));
            }
        }
    }
    for (place, crossing) in &found {
        assert!(
            ALLOWED.contains(&(place.as_str(), *crossing)),
            "{place} crosses between host and device by {crossing}: use `transfer::fetch` or `transfer::upload`"
        );
    }
    for (place, crossing) in ALLOWED {
        assert!(
            found.iter().any(|f| *f == (place.to_owned(), crossing)),
            "{place} has no {crossing} any more"
        );
    }
}
