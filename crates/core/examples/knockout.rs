//! Answers with parts of the prompt masked: `cargo run --release -p palimpsest-core --example knockout -- MODEL_FOLDER_OR_GGUF`.

use palimpsest_core::Model;
use palimpsest_core::text::{Message, MessageRole};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("give a model's folder or .gguf file")?;
    let mut model = Model::open(path)?;
    let (old, new) = ("The market is on Thursday.", "From May on the market is on Sunday.");
    let question = "When is the market in June?";
    let content = format!("{old}\n{new}\n{question}");
    let messages = [Message { role: MessageRole::User, content }];
    let prompt = model.chat(&messages, &[("old", old), ("new", new), ("question", question)])?;
    // From the question on, mask the old or the new session at every layer.
    for hidden in [&[][..], &["question->old"], &["question->new"]] {
        let answer = model.answer(&prompt, 24, &["answer"], hidden)?;
        println!("{hidden:?}: {}", answer.text);
    }
    Ok(())
}
