//! Reads text files given by users: UTF-8 with or without a byte order mark (BOM). Refuses UTF-16 by name, or decodes it ([`decoded`]).

use std::io::{self, BufRead, ErrorKind};
use std::path::Path;

/// Maximum bytes of [`bounded`].
const MOST_BYTES: u64 = 4_000_000_000;

const MARK: &[u8] = "\u{feff}".as_bytes();

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotUtf8 {
    #[error("it is {name}, and files are read as UTF-8; convert it: iconv -f {name} -t UTF-8 FILE > NEW")]
    Encoding { name: &'static str },
    #[error(
        "it is not UTF-8 (byte 0x{byte:02X} at line {line}, column {column}); save it as UTF-8 (where it is Windows-1252: iconv -f \
         WINDOWS-1252 -t UTF-8 FILE > NEW)"
    )]
    Byte {
        byte: u8,
        line: usize,
        /// One-based, in bytes.
        column: usize,
    },
}

impl From<NotUtf8> for io::Error {
    fn from(error: NotUtf8) -> Self {
        io::Error::new(ErrorKind::InvalidData, error)
    }
}

pub fn read(path: &Path) -> io::Result<String> {
    Ok(text(std::fs::read(path)?)?)
}

/// Content of a regular file of at most 4 GB, reached by links, too; a FIFO or device is refused without waiting for it.
pub fn bounded(path: &Path) -> io::Result<Vec<u8>> {
    let found = std::fs::metadata(path)?;
    if !found.is_file() {
        return Err(io::Error::other("it is a folder, FIFO, socket or device where a regular file belongs"));
    }
    if found.len() > MOST_BYTES {
        let reason =
            format!("it has {} bytes, and files are read of at most {MOST_BYTES}; split it", found.len());
        return Err(io::Error::new(ErrorKind::FileTooLarge, reason));
    }
    std::fs::read(path)
}

pub fn text(mut bytes: Vec<u8>) -> Result<String, NotUtf8> {
    refuse_others(&bytes)?;
    if bytes.starts_with(MARK) {
        bytes.drain(..MARK.len());
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let before = &error.as_bytes()[..at];
        let mut lines = before.split(|byte| *byte == b'\n');
        NotUtf8::Byte {
            byte: error.as_bytes().get(at).copied().unwrap_or_default(),
            line: lines.clone().count(),
            column: lines.next_back().map_or(0, <[u8]>::len) + 1,
        }
    })
}

/// The faults of a file that is used whole or not at all: one on the line, several below each other, with `why` none is passed over.
pub fn refused(path: &Path, faults: &[String], why: &str) -> String {
    const SHOWN: usize = 20;
    let file = path.display();
    match faults {
        [one] => format!("{file}, {one}"),
        several => {
            let lines: String = several.iter().take(SHOWN).map(|fault| format!("\n  {fault}")).collect();
            let more = match several.len().saturating_sub(SHOWN) {
                0 => String::new(),
                more => format!("\n  and {more} more"),
            };
            format!("{file}: {} rows cannot be read, and none is used: {why}{lines}{more}", several.len())
        }
    }
}

pub fn skip_mark(reader: &mut impl BufRead) -> io::Result<()> {
    let beginning = reader.fill_buf()?;
    refuse_others(beginning)?;
    if beginning.starts_with(MARK) {
        reader.consume(MARK.len());
    }
    Ok(())
}

/// UTF-8, or UTF-16 as spreadsheets write it.
pub fn decoded(bytes: Vec<u8>) -> Result<String, NotUtf8> {
    match units(&bytes) {
        Some((name, units)) => String::from_utf16(&units).map_err(|_| NotUtf8::Encoding { name }),
        None => text(bytes),
    }
}

/// [`decoded`] of a file's beginning, which may end inside a character.
pub fn decoded_lossy(bytes: &[u8]) -> String {
    match units(bytes) {
        Some((_, units)) => String::from_utf16_lossy(&units),
        None => String::from_utf8_lossy(bytes).trim_start_matches('\u{feff}').to_owned(),
    }
}

/// UTF-16 code units without the byte order mark, with the encoding's name.
fn units(bytes: &[u8]) -> Option<(&'static str, Vec<u16>)> {
    let Err(NotUtf8::Encoding { name }) = refuse_others(bytes) else { return None };
    let unit: fn([u8; 2]) -> u16 = match (name, bytes) {
        ("UTF-16", [0xFF, ..]) | ("UTF-16LE", _) => u16::from_le_bytes,
        ("UTF-16", _) | ("UTF-16BE", _) => u16::from_be_bytes,
        _ => return None,
    };
    let units = bytes.chunks_exact(2).map(|pair| unit([pair[0], pair[1]]));
    Some((name, units.skip_while(|unit| *unit == 0xFEFF).collect()))
}

fn refuse_others(beginning: &[u8]) -> Result<(), NotUtf8> {
    let name = match beginning {
        [0xFF, 0xFE, 0, 0, ..] | [0, 0, 0xFE, 0xFF, ..] => "UTF-32",
        [0xFF, 0xFE, ..] | [0xFE, 0xFF, ..] => "UTF-16",
        // No BOM: assume two ASCII characters.
        [1..=255, 0, 1..=255, 0, ..] => "UTF-16LE",
        [0, 1..=255, 0, 1..=255, ..] => "UTF-16BE",
        _ => return Ok(()),
    };
    Err(NotUtf8::Encoding { name })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn utf16_text(bytes: &[u8]) -> Option<&'static str> {
        let table = [("\u{feff}{}", "{}"), ("\u{feff}猫", "猫"), ("{\"", "{\"")];
        let written = |text: &str, to: fn(u16) -> [u8; 2]| utf16(text, to) == bytes;
        let is = |text: &str| written(text, u16::to_le_bytes) || written(text, u16::to_be_bytes);
        table.into_iter().find(|(text, _)| is(text)).map(|(_, plain)| plain)
    }

    fn utf16(text: &str, bytes: fn(u16) -> [u8; 2]) -> Vec<u8> {
        text.encode_utf16().flat_map(bytes).collect()
    }

    #[test]
    fn a_byte_order_mark_is_no_text_and_other_encodings_are_refused_by_name() {
        for (bytes, read) in [
            ("\u{feff}{}".as_bytes().to_vec(), Ok("{}")),
            (b"{}".to_vec(), Ok("{}")),
            (Vec::new(), Ok("")),
            ("\u{feff}".as_bytes().to_vec(), Ok("")),
            ("a\u{feff}b".as_bytes().to_vec(), Ok("a\u{feff}b")),
            (utf16("\u{feff}{}", u16::to_le_bytes), Err(NotUtf8::Encoding { name: "UTF-16" })),
            (utf16("\u{feff}猫", u16::to_be_bytes), Err(NotUtf8::Encoding { name: "UTF-16" })),
            (utf16("{\"", u16::to_le_bytes), Err(NotUtf8::Encoding { name: "UTF-16LE" })),
            (utf16("{\"", u16::to_be_bytes), Err(NotUtf8::Encoding { name: "UTF-16BE" })),
            (b"\xff\xfe\0\0{\0\0\0".to_vec(), Err(NotUtf8::Encoding { name: "UTF-32" })),
            (b"{\n \"caf\xe9\"".to_vec(), Err(NotUtf8::Byte { byte: 0xE9, line: 2, column: 6 })),
        ] {
            assert_eq!(text(bytes.clone()), read.map(str::to_owned), "{bytes:?}");
            if let Some(plain) = utf16_text(&bytes) {
                assert_eq!(decoded(bytes.clone()).unwrap(), plain);
                assert_eq!(decoded_lossy(&bytes), plain);
            } else {
                assert_eq!(decoded(bytes.clone()), text(bytes.clone()));
            }
            let mut reader = bytes.as_slice();
            let skipped = skip_mark(&mut reader);
            assert_eq!(skipped.is_ok(), !matches!(text(bytes.clone()), Err(NotUtf8::Encoding { .. })));
            if let Ok(text) = text(bytes.clone()) {
                assert_eq!(reader, text.as_bytes());
            }
        }
    }
}
