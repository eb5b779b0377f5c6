//! Writes small GGUF files, valid or not.

/// A metadata value with its type code.
#[derive(Clone)]
pub enum Meta {
    U32(u32),
    F32(f32),
    Text(&'static str),
    Texts(Vec<&'static str>),
    /// A type code and raw bytes.
    Raw(u32, Vec<u8>),
}

/// A tensor description in GGUF's terms.
#[derive(Clone)]
pub struct Tensor {
    pub name: &'static str,
    pub dims: Vec<u64>,
    pub code: u32,
    pub offset: u64,
}

/// A file to write; every field can be made invalid.
#[derive(Clone)]
pub struct Gguf {
    pub magic: [u8; 4],
    pub version: u32,
    pub tensor_count: Option<u64>,
    pub metadata_count: Option<u64>,
    pub metadata: Vec<(&'static str, Meta)>,
    pub tensors: Vec<Tensor>,
    pub data: Vec<u8>,
}

impl Gguf {
    /// A valid file: an F32 tensor [2, 4] and a Q4_0 tensor [1, 32].
    pub fn small() -> Self {
        let mut data: Vec<u8> = (0..8).flat_map(|number: u16| f32::from(number).to_le_bytes()).collect();
        data.extend([0; 18]); // one Q4_0 block: a scale of zero and 32 nibbles
        Self {
            magic: *b"GGUF",
            version: 3,
            tensor_count: None,
            metadata_count: None,
            metadata: vec![
                ("general.architecture", Meta::Text("llama")),
                ("llama.block_count", Meta::U32(2)),
                ("llama.rope.freq_base", Meta::F32(10_000.0)),
                ("tokenizer.ggml.model", Meta::Text("gpt2")),
                ("tokenizer.ggml.tokens", Meta::Texts(vec!["a", "b", "ab"])),
                ("tokenizer.ggml.merges", Meta::Texts(vec!["a b"])),
                ("tokenizer.ggml.bos_token_id", Meta::U32(1)),
            ],
            tensors: vec![
                Tensor { name: "plain", dims: vec![4, 2], code: 0, offset: 0 },
                Tensor { name: "packed", dims: vec![32], code: 2, offset: 32 },
            ],
            data,
        }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.metadata_count.unwrap_or(self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            text(&mut out, key);
            match value {
                Meta::U32(number) => tagged(&mut out, 4, &number.to_le_bytes()),
                Meta::F32(number) => tagged(&mut out, 6, &number.to_le_bytes()),
                Meta::Raw(code, bytes) => tagged(&mut out, *code, bytes),
                Meta::Text(value) => {
                    tagged(&mut out, 8, &[]);
                    text(&mut out, value);
                }
                Meta::Texts(values) => {
                    tagged(&mut out, 9, &8_u32.to_le_bytes());
                    out.extend((values.len() as u64).to_le_bytes());
                    for value in values {
                        text(&mut out, value);
                    }
                }
            }
        }
        for tensor in &self.tensors {
            text(&mut out, tensor.name);
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            for length in &tensor.dims {
                out.extend(length.to_le_bytes());
            }
            out.extend(tensor.code.to_le_bytes());
            out.extend(tensor.offset.to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend(&self.data);
        out
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn tagged(out: &mut Vec<u8>, code: u32, bytes: &[u8]) {
    out.extend(code.to_le_bytes());
    out.extend(bytes);
}
