//! `model parity --against`: another engine's numbers held against ours, and broken files.

use candle_core::Device;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;

use super::knockouts::fixture;
use super::*;

/// A tensor's name, dtype, shape and bytes.
type Raw<'a> = (&'a str, Dtype, Vec<usize>, Vec<u8>);

fn put(path: &Path, tensors: &[Raw<'_>]) {
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (*name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

#[test]
fn parity_holds_dumps_of_any_dtype_against_ours_and_refuses_broken_ones_by_tensor_value_and_remedy() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let tokens: Vec<i64> = (0..40).map(|at| 2 + at * 7 % 250).collect();
    let n = tokens.len();
    std::fs::write(
        at("tokens.json"),
        json!({"tokens": tokens, "spans": {}, "rows": [], "logits": n}).to_string(),
    )
    .unwrap();
    let mut trace = command(["trace", "--tokens", shown(&at("tokens.json")), "--out", shown(&at("ours"))]);
    trace.arg("--model").arg(fixture("gemma3-tiny"));
    done(ended(trace));
    let logits = candle_core::safetensors::load(at("ours"), &Device::Cpu).unwrap().remove("logits").unwrap();
    let vocab = logits.dim(1).unwrap();
    let floats = |logits: &[f32]| -> Vec<u8> { logits.iter().flat_map(|x| x.to_le_bytes()).collect() };
    let own = logits.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let ids = |ids: &[i64]| -> Vec<u8> { ids.iter().flat_map(|id| id.to_le_bytes()).collect() };
    let short = |ids: &[i64]| -> Vec<u8> { ids.iter().flat_map(|id| (*id as i32).to_le_bytes()).collect() };
    let seen: Vec<u8> =
        (0..n).flat_map(|row| (0..n).map(move |key| u8::from(key <= row && row - key < 23))).collect();
    let parity = |tensors: &[Raw<'_>], more: &[&str]| {
        put(&at("dump"), tensors);
        let mut command =
            command(["model", "parity", shown(&fixture("gemma3-tiny")), "--against", shown(&at("dump"))]);
        command.args(more);
        ended(command)
    };
    let given = || ("tokens", Dtype::I64, vec![n], ids(&tokens));
    let choices = |bytes: Vec<u8>| ("selected.0", Dtype::BOOL, vec![n, n], bytes);
    let whole = ("logits", Dtype::F32, vec![n, vocab], floats(&own));

    let found = done(parity(&[given(), whole, choices(seen.clone())], &[]));
    assert!(
        found.out.contains("selected.0  40") && found.out.ends_with("all within 0.001\n"),
        "{}",
        found.out
    );
    // Of some rows, in other dtypes.
    let rows = [3usize, 31];
    let picked = rows.iter().flat_map(|row| &own[row * vocab..][..vocab]);
    let half: Vec<u8> = picked.flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect();
    let of_rows: Vec<u8> = rows.iter().flat_map(|row| seen[row * n..][..n].to_vec()).collect();
    let some = [
        ("tokens", Dtype::I32, vec![n], short(&tokens)),
        ("rows", Dtype::I32, vec![2], short(&[3, 31])),
        ("logits", Dtype::F16, vec![2, vocab], half),
        ("selected.3", Dtype::U8, vec![2, n], of_rows),
    ];
    done(parity(&some, &["--tolerance", "0.02"]));
    let found = parity(&some, &["--tolerance", "0"]);
    assert!(found.code == Some(1) && found.out.contains("not all within 0\n"), "{}", found.out);
    // One key too many, and a number that is none.
    let mut more = seen.clone();
    more[30 * n + 2] ^= 1;
    let mut none = own.clone();
    none[11 * vocab + 4] = f32::NAN;
    let none = ("logits", Dtype::F32, vec![n, vocab], floats(&none));
    let found = parity(&[given(), none, choices(more)], &[]);
    let line = |name: &str| {
        let line = found.out.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().skip(2).map(str::to_owned).collect::<Vec<_>>().join(" ")
    };
    assert_eq!((found.code, &*line("logits")), (Some(1), "inf row 11, 4 11"));
    assert_eq!(line("selected.0"), "1.000e0 row 30, 2 30");

    let refused = |tensors: &[Raw<'_>], parts: &[&str]| {
        let refused = parity(tensors, &[]);
        assert!(refused.code == Some(1) && refused.out.is_empty(), "{}", refused.out);
        assert!(refused.err.contains(shown(&at("dump"))), "the file is named: {}", refused.err);
        assert!(parts.iter().all(|part| refused.err.contains(part)), "{parts:?}: {}", refused.err);
    };
    let seen = || choices(seen.clone());
    refused(&[seen()], &["no tensor `tokens`", "write"]);
    refused(&[given()], &["neither `logits` nor `selected.LAYER`"]);
    refused(&[("tokens", Dtype::I64, vec![0], Vec::new()), seen()], &["`tokens` is empty"]);
    refused(
        &[("tokens", Dtype::I64, vec![1, n], ids(&tokens)), seen()],
        &["`tokens` is I64 [1, 40]", "one dimension"],
    );
    let other: Vec<i64> = tokens.iter().map(|token| token - 9).collect();
    refused(&[("tokens", Dtype::I64, vec![n], ids(&other)), seen()], &["`tokens` has -7", "0 and more"]);
    let other: Vec<i64> = tokens.iter().map(|token| token + 900).collect();
    refused(
        &[("tokens", Dtype::I64, vec![n], ids(&other)), seen()],
        &["`tokens` has 902", "0 to 266", "tokenizer"],
    );
    refused(
        &[given(), seen(), ("selected_1", Dtype::U8, vec![1, 1], vec![0])],
        &["`selected_1` is none of", "leave it out"],
    );
    refused(&[given(), ("selected.x", Dtype::U8, vec![n, n], seen().3)], &["`selected.x` is none of"]);
    refused(
        &[given(), ("selected.9", Dtype::U8, vec![n, n], seen().3)],
        &["`selected.9`", "layers are 0 to 3"],
    );
    refused(
        &[given(), ("selected.0", Dtype::F32, vec![1, 1], floats(&[0.5]))],
        &["`selected.0` is F32 [1, 1]", "U8, BOOL"],
    );
    refused(
        &[given(), ("selected.0", Dtype::U8, vec![2, n - 1], vec![1; 2 * n - 2])],
        &["rows of 39 numbers", "each of `tokens`"],
    );
    refused(&[given(), ("logits", Dtype::I64, vec![1, 1], ids(&[1]))], &["`logits` is I64 [1, 1]", "F16"]);
    refused(
        &[given(), ("logits", Dtype::F32, vec![1, 5], floats(&[0.0; 5]))],
        &["rows of 5 numbers", "vocabulary"],
    );
    refused(
        &[given(), ("rows", Dtype::I64, vec![1], ids(&[2])), seen()],
        &["it has 1 rows", "[40]", "as many"],
    );
    refused(
        &[
            given(),
            ("rows", Dtype::I64, vec![1], ids(&[40])),
            ("selected.0", Dtype::U8, vec![1, n], vec![0; n]),
        ],
        &["row 40 is not among its 40"],
    );
    std::fs::write(at("broken"), "hello").unwrap();
    for (name, part) in [("broken", "it is no safetensors file"), ("absent", "No such file")] {
        let path = at(name);
        let refused =
            palimpsest(["model", "parity", shown(&fixture("gemma3-tiny")), "--against", shown(&path)]);
        assert!(refused.code == Some(1) && refused.err.contains(part), "{}", refused.err);
        assert!(refused.err.contains(shown(&path)), "{}", refused.err);
    }
    for tolerance in ["nan", "-1", "inf", "some"] {
        let flag = format!("--tolerance={tolerance}");
        let refused = parity(&[given(), seen()], &[&flag]);
        assert!(refused.code == Some(2) && refused.err.contains("0 or more"), "{tolerance}: {}", refused.err);
    }
}
