//! JSON and floats as written by Python.

use std::io::{self, Write};

use minijinja::Value;
use serde::Serialize;
use serde_json::ser::Formatter;

/// Arguments of `json.dumps`.
pub(super) struct JsonStyle {
    /// `ensure_ascii`.
    pub ascii: bool,
    /// Indentation per level; `None` writes one line.
    pub indent: Option<String>,
    /// Separator of entries.
    pub item: String,
    /// Separator of key and value.
    pub key: String,
    pub sort_keys: bool,
}

impl JsonStyle {
    /// Fails if the text has more than `most` bytes.
    pub fn write(&self, value: &Value, most: usize) -> Result<String, serde_json::Error> {
        let mut output = Limited { bytes: Vec::new(), most };
        let mut json = serde_json::Serializer::with_formatter(
            &mut output,
            Lines { style: self, level: 0, filled: false },
        );
        match self.sort_keys {
            false => value.serialize(&mut json)?,
            true => sorted(serde_json::to_value(value)?).serialize(&mut json)?,
        }
        String::from_utf8(output.bytes).map_err(serde::de::Error::custom)
    }
}

struct Limited {
    bytes: Vec<u8>,
    most: usize,
}

impl Write for Limited {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if data.len() > self.most - self.bytes.len() {
            return Err(io::Error::other(format!("the text has more than {} bytes", self.most)));
        }
        self.bytes.extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn sorted(value: serde_json::Value) -> serde_json::Value {
    match value {
        serde_json::Value::Object(map) => {
            let mut entries: Vec<_> = map.into_iter().map(|(key, value)| (key, sorted(value))).collect();
            entries.sort_by(|(a, _), (b, _)| a.cmp(b));
            serde_json::Value::Object(entries.into_iter().collect())
        }
        serde_json::Value::Array(list) => list.into_iter().map(sorted).collect(),
        other => other,
    }
}

struct Lines<'s> {
    style: &'s JsonStyle,
    level: usize,
    /// True if the current list or object has an entry.
    filled: bool,
}

impl Lines<'_> {
    fn open<W: ?Sized + Write>(&mut self, writer: &mut W, sign: &[u8]) -> io::Result<()> {
        self.level += 1;
        self.filled = false;
        writer.write_all(sign)
    }

    fn close<W: ?Sized + Write>(&mut self, writer: &mut W, sign: &[u8]) -> io::Result<()> {
        self.level -= 1;
        if self.filled {
            self.line(writer)?;
        }
        writer.write_all(sign)
    }

    fn entry<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(self.style.item.as_bytes())?;
        }
        self.line(writer)
    }

    fn line<W: ?Sized + Write>(&self, writer: &mut W) -> io::Result<()> {
        match &self.style.indent {
            None => Ok(()),
            Some(indent) => {
                writer.write_all(b"\n")?;
                (0..self.level).try_for_each(|_| writer.write_all(indent.as_bytes()))
            }
        }
    }
}

impl Formatter for Lines<'_> {
    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.entry(writer, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.entry(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.style.key.as_bytes())
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }

    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(python_float(value).as_bytes())
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, text: &str) -> io::Result<()> {
        if !self.style.ascii {
            return writer.write_all(text.as_bytes());
        }
        for c in text.chars() {
            match c {
                ' '..='~' => write!(writer, "{c}")?,
                _ => {
                    c.encode_utf16(&mut [0; 2])
                        .iter()
                        .try_for_each(|unit| write!(writer, "\\u{unit:04x}"))?;
                }
            }
        }
        Ok(())
    }
}

/// Python's `repr` of a float: the shortest digits that round-trip.
pub(super) fn python_float(value: f64) -> String {
    let shortest = format!("{value:e}");
    let Some((digits, exponent)) = shortest.split_once('e') else {
        return if value.is_nan() {
            "nan"
        } else if value > 0.0 {
            "inf"
        } else {
            "-inf"
        }
        .to_owned();
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = value.to_string();
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}
