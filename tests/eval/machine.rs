//! The machine in a run's header.

use palimpsest::runs::header::{AttentionBy, Machine};
use palimpsest_core::attention::{AttentionKernel, Settled};

#[test]
fn a_header_says_what_computed_attention_and_one_without_it_still_reads() {
    use AttentionKernel::{Auto, Fused, Products};
    let layer = |forward, sums| Settled { forward, sums };
    let layers = [layer(Fused, Fused), layer(Products, Fused), layer(Fused, Fused)];
    let attention_kernel = AttentionBy::of(Auto, layers.into_iter());
    let machine = Machine { attention_kernel, ..Machine::here("cuda:0", 2) };
    let value = serde_json::to_value(&machine).unwrap();
    let expected = serde_json::json!({"chosen": "auto", "forward": ["products", "fused"], "sums": ["fused"]});
    assert_eq!(value["attention_kernel"], expected);
    assert_eq!(serde_json::from_value::<Machine>(value).unwrap(), machine);
    // No choice of kernels, so nothing is written, as in older runs.
    let attention_kernel = AttentionBy::of(Auto, std::iter::empty());
    let cpu = Machine { attention_kernel, ..Machine::here("cpu", 2) };
    let old = serde_json::to_value(&cpu).unwrap();
    assert!(old.get("attention_kernel").is_none());
    assert_eq!(serde_json::from_value::<Machine>(old).unwrap(), cpu);
}
