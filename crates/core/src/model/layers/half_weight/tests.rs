//! Products of each kernel against sums in f64.

use super::*;

/// Kernels supported by this machine.
fn kernels() -> Vec<Kernel> {
    let mut kernels = vec![Kernel::Wide];
    if bfloat::multiplies() {
        kernels.push(Kernel::Pairs);
    }
    #[cfg(target_arch = "x86_64")]
    match tiles_serve() {
        true => kernels.push(Kernel::Tiles),
        false => println!("left out: this processor has no AMX"),
    }
    kernels
}

fn numbers(tensor: &Tensor) -> Result<Vec<f64>> {
    tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

#[test]
fn both_kernels_give_the_plain_definitions_sums_at_every_shape() -> Result<()> {
    for (l, cols, rows) in [
        (1, 2, 1),
        (1, 65, 33),
        (1, 576, 1500),
        (2, 64, 130),
        (11, 33, 40),
        (12, 100, 32),
        (13, 64, 96),
        (70, 301, 65),
        (200, 128, 72),
    ] {
        let x = Tensor::randn(0f32, 1.0, (l, cols), &Device::Cpu)?;
        let w = Tensor::randn(0f32, 1.0, (rows, cols), &Device::Cpu)?;
        let weight = HalfWeight::new(&w)?;
        let (rounded_x, rounded_w) =
            (numbers(&x.to_dtype(DType::BF16)?)?, numbers(&w.to_dtype(DType::BF16)?)?);
        for kernel in kernels() {
            let y = numbers(&HalfInput::for_kernel(&x, kernel)?.product(&weight)?)?;
            assert_eq!(y.len(), l * rows);
            for row in 0..l {
                for output in 0..rows {
                    let (x, w) = (&rounded_x[row * cols..][..cols], &rounded_w[output * cols..][..cols]);
                    let expected: f64 = x.iter().zip(w).map(|(x, w)| x * w).sum();
                    let size: f64 = x.iter().zip(w).map(|(x, w)| (x * w).abs()).sum();
                    let found = y[row * rows + output];
                    assert!(
                        (found - expected).abs() <= 1e-5 * size,
                        "({l}, {cols}, {rows}): {found}, not {expected}"
                    );
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_row_has_the_bits_that_it_has_alone_whatever_rows_are_multiplied_with_it() -> Result<()> {
    let (cols, rows) = (130, 150);
    let weight = HalfWeight::new(&Tensor::randn(0f32, 1.0, (rows, cols), &Device::Cpu)?)?;
    let x = Tensor::randn(0f32, 1.0, (200, cols), &Device::Cpu)?;
    for kernel in kernels() {
        let of = |from: usize, l: usize| -> Result<Vec<u32>> {
            let y = HalfInput::for_kernel(&x.narrow(0, from, l)?, kernel)?.product(&weight)?;
            Ok(y.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect())
        };
        let whole = of(0, 200)?;
        for (from, l) in [(0, 1), (17, 1), (3, 5), (100, 12), (50, 47), (0, 199)] {
            assert_eq!(of(from, l)?, whole[from * rows..(from + l) * rows], "{from}, {l} rows");
        }
    }
    Ok(())
}

#[test]
fn outputs_weights_come_back_as_they_were_rounded() -> Result<()> {
    let w = Tensor::randn(0f32, 1.0, (70, 33), &Device::Cpu)?;
    let rounded = w.to_dtype(DType::BF16)?.to_dtype(DType::F32)?.to_vec2::<f32>()?;
    let weight = HalfWeight::new(&w)?;
    let found = weight.of_rows(&[69, 0, 31, 32])?.to_vec2::<f32>()?;
    assert_eq!(found, [69, 0, 31, 32].map(|row: usize| rounded[row].clone()));
    assert!(weight.of_rows(&[70]).is_err());
    Ok(())
}

#[test]
fn a_weight_of_columns_is_that_of_its_rows() -> Result<()> {
    for (rows, cols) in [(70, 33), (32, 8), (130, 64)] {
        let w = Tensor::randn(0f32, 1.0, (rows, cols), &Device::Cpu)?;
        let parts = (0..rows).step_by(64).map(|start| {
            let outputs = 64.min(rows - start);
            let part =
                w.narrow(0, start, outputs).and_then(|part| part.t()?.contiguous()?.flatten_all()?.to_vec1());
            (outputs, part.unwrap())
        });
        assert_eq!(HalfWeight::of_columns(rows, cols, parts).pairs, HalfWeight::new(&w)?.pairs);
    }
    Ok(())
}

#[test]
fn activations_of_another_width_are_refused() -> Result<()> {
    let weight = HalfWeight::new(&Tensor::zeros((4, 8), DType::F32, &Device::Cpu)?)?;
    let input = HalfInput::new(&Tensor::zeros((1, 6), DType::F32, &Device::Cpu)?)?;
    let refusal = input.product(&weight).unwrap_err().to_string();
    assert!(refusal.contains("(1, 6) with a weight of (4, 8)"), "{refusal}");
    Ok(())
}
