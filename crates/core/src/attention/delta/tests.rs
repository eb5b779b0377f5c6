//! The Candle implementation, used on other devices, equals the slice implementation.

use candle_core::{DType, Device};

use super::*;

#[test]
fn the_walk_in_candle_operations_equals_the_one_on_slices_at_any_place_of_rows() -> Result<()> {
    let device = &Device::Cpu;
    let (l, key_heads, value_heads, d) = (1200, 2, 6, 12);
    let q = Tensor::randn(0f32, 1.0, (l, key_heads, d), device)?;
    let k = Tensor::randn(0f32, 1.0, (l, key_heads, d), device)?;
    let g = (Tensor::rand(0f32, 1.0, (l, value_heads), device)?.sqr()?.sqr()? * -0.2)?;
    let beta = Tensor::rand(0f32, 1.0, (l, value_heads), device)?;
    let mut history = History::default();
    history.push(&k, &g, &beta, l)?;
    let bounds = [0, 1, 30, 64, 120, 121, 500, 1100];
    let all = [0..1, 0..70, 63..65, 64..128, 100..101, 130..700, 1000..1200];
    for (rows, rule) in all.into_iter().flat_map(|rows| [(rows.clone(), Rule::Delta), (rows, Rule::Mamba2)]) {
        history.rule = rule;
        let q = rule.read(&q.narrow(0, rows.start, rows.len())?, 0.3)?.transpose(0, 1)?.contiguous()?;
        assert_eq!(q.dtype(), DType::F32);
        let [slices, candle] = [walk_on_cpu, blocks::walk].map(|walk| -> Result<Vec<f64>> {
            let sums = walk(&q, rows.start, &history, &bounds, value_heads, false)?;
            assert_eq!(sums.dims(), [2, value_heads, bounds.len() - 1]);
            sums.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
        });
        let (slices, candle) = (slices?, candle?);
        assert!(slices.iter().any(|x| *x != 0.0));
        for (a, b) in slices.iter().zip(&candle) {
            let size = 1e-5 * rows.len() as f64 * a.abs().max(1.0);
            assert!((a - b).abs() < size, "{rule:?}, rows {rows:?}: {a} and {b}");
        }
    }
    Ok(())
}
