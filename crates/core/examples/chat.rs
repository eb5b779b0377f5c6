//! A chat with attention: `cargo run --release -p palimpsest-core --example chat -- MODEL_FOLDER_OR_GGUF`.

use ndarray::s;
use palimpsest_core::Model;
use palimpsest_core::text::{Message, MessageRole};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("give a model's folder or .gguf file")?;
    let mut model = Model::open(path)?;
    let mut messages: Vec<Message> = Vec::new();
    for said in ["My sister lives in Bergen.", "She has moved to Oslo since.", "Where does she live?"] {
        messages.push(Message { role: MessageRole::User, content: said.to_owned() });
        let prompt = model.chat(&messages, &[])?;
        let answer = model.answer(&prompt, 24, &["answer"], &[])?;
        println!("user: {said}\nassistant: {}", answer.text);
        // Mean over layers and heads, per message.
        let (layers, heads, _, _) = answer.masses.mass.dim();
        for (at, span) in prompt.overlays.iter().enumerate() {
            let sum: f32 = answer.masses.mass.slice(s![.., .., 0, at]).sum();
            println!("  attention to {}: {:.4}", span.label, sum / (layers * heads) as f32);
        }
        messages.push(Message { role: MessageRole::Assistant, content: answer.text });
    }
    Ok(())
}
