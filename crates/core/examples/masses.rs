//! Attention between named spans of a text: `cargo run --release -p palimpsest-core --example masses -- MODEL_FOLDER_OR_GGUF`.

use palimpsest_core::Model;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("give a model's folder or .gguf file")?;
    let mut model = Model::open(path)?;
    let (old, new) = ("The market is on Thursday.", "From May on the market is on Sunday.");
    let question = "When is the market in June?";
    let prompt = model
        .text(&format!("{old} {new} {question}"), &[("old", old), ("new", new), ("question", question)])?;
    let masses = model.masses(&prompt, &["question"], &[])?;
    // f32 [layers, heads, rows, spans]
    let (_, heads, _, _) = masses.mass.dim();
    for (at, layer) in masses.layers.iter().enumerate() {
        let mean =
            |span: usize| (0..heads).map(|head| masses.mass[[at, head, 0, span]]).sum::<f32>() / heads as f32;
        println!("layer {layer:2}: question to old {:.4}, to new {:.4}", mean(0), mean(1));
    }
    Ok(())
}
