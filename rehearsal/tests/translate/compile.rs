//! From PTX to code: the cache of compiled kernels, and errors.

use std::path::{Path, PathBuf};

use rehearsal::compile::CompileError;

use crate::machine::kernel_in;
use crate::snippets::module;

fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    path
}

#[test]
fn a_kernel_that_is_compiled_by_many_at_once_is_one_file() {
    let cache = folder("at-once");
    let ptx = module(0, "", "mov.u32 %r1, 7;");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| kernel_in(&cache, &ptx, "test").expect("a kernel"));
        }
    });
    let names = |folder: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(folder).expect("a folder");
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
    };
    let (libraries, others): (Vec<_>, Vec<_>) =
        names(&cache).into_iter().partition(|name| name.ends_with(".so"));
    assert_eq!((libraries.len(), others.len()), (1, 1), "{libraries:?} {others:?}");
    assert!(names(&cache.join(&others[0])).iter().all(|name| name.ends_with(".h")));
}

#[test]
fn a_kernel_is_found_again_and_another_text_is_another_kernel() {
    let cache = folder("again");
    let count = || std::fs::read_dir(&cache).expect("a folder").count();
    let first = kernel_in(&cache, &module(0, "", "mov.u32 %r1, 7;"), "test").expect("a kernel");
    assert_eq!((first.params, count()), (0, 2));
    kernel_in(&cache, &module(0, "", "mov.u32 %r1, 7;"), "test").expect("a kernel");
    assert_eq!(count(), 2);
    let second = kernel_in(&cache, &module(1, "", "mov.u32 %r1, 7;"), "test").expect("a kernel");
    assert_eq!((second.params, count()), (1, 3));
}

#[test]
fn errors_name_the_kernel_the_line_or_the_folder() {
    let cache = folder("errors");
    let ptx = module(0, "", "");
    let error = |ptx: &str, entry: &str, cache: &Path| match kernel_in(cache, ptx, entry) {
        Ok(_) => panic!("a kernel"),
        Err(error) => error,
    };
    let missing = error(&ptx, "absent", &cache);
    assert!(matches!(&missing, CompileError::NoKernel(name) if name == "absent"), "{missing}");
    assert_eq!(
        error(".version 9.0\n\"open", "test", &cache).to_string(),
        "PTX, line 2: a string without an end"
    );
    let file = cache.join("file");
    std::fs::create_dir_all(&cache).expect("a folder");
    std::fs::write(&file, "").expect("a file");
    assert!(error(&ptx, "test", &file).to_string().contains("choose another folder with REHEARSAL_CACHE"));
}
