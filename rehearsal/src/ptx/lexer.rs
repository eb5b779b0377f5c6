//! Tokenizer ("Lexical Elements" and "Source Format"). Drops comments; every token knows its line and position.

use super::ParseError;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Tok<'a> {
    /// A name: `%r1`, `$L__BB0_2`, `add`.
    Word(&'a str),
    /// A name after a dot, without it: `.reg` is `reg`; `.shared::cta` is one token.
    Dotted(&'a str),
    /// An integer, truncated to 64 bits.
    Integer(u64),
    /// `0f` and eight digits.
    Float32(u32),
    /// `0d` and sixteen digits.
    Float64(u64),
    Text(&'a str),
    Mark(char),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Token<'a> {
    pub is: Tok<'a>,
    pub line: u32,
    /// Byte offset of the start.
    pub from: usize,
    /// Byte offset of the end.
    pub to: usize,
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$'
}

/// End of the run of bytes from `at` that satisfy `keep`.
fn run(bytes: &[u8], at: usize, keep: impl Fn(u8) -> bool) -> usize {
    at + bytes[at..].iter().take_while(|&&byte| keep(byte)).count()
}

pub(super) fn tokens(text: &str) -> Result<Vec<Token<'_>>, ParseError> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len() / 5);
    let (mut at, mut line) = (0, 1);
    while at < bytes.len() {
        let from = at;
        let next = bytes.get(at + 1).copied().unwrap_or(0);
        let is = match bytes[at] {
            b'\n' => {
                line += 1;
                at += 1;
                continue;
            }
            byte if byte.is_ascii_whitespace() => {
                at += 1;
                continue;
            }
            b'/' if next == b'/' => {
                at = run(bytes, at, |byte| byte != b'\n');
                continue;
            }
            b'/' if next == b'*' => {
                let length =
                    text[at..].find("*/").ok_or_else(|| error(line, "a comment without an end"))? + 2;
                line += bytes[at..at + length].iter().filter(|&&byte| byte == b'\n').count() as u32;
                at += length;
                continue;
            }
            b'"' => {
                let end = run(bytes, at + 1, |byte| byte != b'"' && byte != b'\n');
                if bytes.get(end) != Some(&b'"') {
                    return Err(error(line, "a string without an end"));
                }
                at = end + 1;
                Tok::Text(&text[from + 1..end])
            }
            b'.' if is_name(next) => {
                at = run(bytes, at + 1, is_name);
                while bytes[at..].starts_with(b"::") {
                    at = run(bytes, at + 2, is_name);
                }
                Tok::Dotted(&text[from + 1..at])
            }
            byte if byte.is_ascii_digit() => {
                at = run(bytes, at, is_name);
                let digits = &text[from..at];
                number(digits).ok_or_else(|| error(line, &format!("`{digits}` is no number")))?
            }
            byte if is_name(byte) || byte == b'%' => {
                at = run(bytes, at + 1, is_name);
                Tok::Word(&text[from..at])
            }
            byte if byte.is_ascii() => {
                at += 1;
                Tok::Mark(byte as char)
            }
            _ => return Err(error(line, "a character outside of ASCII")),
        };
        out.push(Token { is, line, from, to: at });
    }
    Ok(out)
}

fn error(line: u32, what: &str) -> ParseError {
    ParseError { line, what: what.to_owned() }
}

/// "Integer Constants" and "Floating-Point Constants" in hexadecimal form; decimal fractions are not supported.
fn number(digits: &str) -> Option<Tok<'static>> {
    let lower = digits.to_ascii_lowercase();
    if let Some(bits) = lower.strip_prefix("0f") {
        return (bits.len() == 8).then(|| u32::from_str_radix(bits, 16).ok()).flatten().map(Tok::Float32);
    }
    if let Some(bits) = lower.strip_prefix("0d") {
        return (bits.len() == 16).then(|| u64::from_str_radix(bits, 16).ok()).flatten().map(Tok::Float64);
    }
    let lower = lower.strip_suffix('u').unwrap_or(&lower);
    let (digits, radix) = match lower.as_bytes() {
        [b'0', b'x', ..] => (&lower[2..], 16),
        [b'0', b'b', ..] => (&lower[2..], 2),
        [b'0', _, ..] => (&lower[1..], 8),
        _ => (lower, 10),
    };
    u64::from_str_radix(digits, radix).ok().map(Tok::Integer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<Tok<'_>> {
        tokens(text).expect("tokens").into_iter().map(|token| token.is).collect()
    }

    #[test]
    fn opcodes_and_operands_are_cut_at_points_and_marks() {
        let expected = [
            Tok::Word("ld"),
            Tok::Dotted("shared::cta"),
            Tok::Dotted("u32"),
            Tok::Word("%r1"),
            Tok::Mark(','),
            Tok::Mark('['),
            Tok::Word("$x"),
            Tok::Mark('+'),
            Tok::Mark('-'),
            Tok::Integer(4),
            Tok::Mark(']'),
        ];
        assert_eq!(of("ld.shared::cta.u32 %r1, [$x+-4]"), expected);
    }

    #[test]
    fn constants_are_read_in_every_notation() {
        assert_eq!(of("10 0x1fU 017 0b11"), [10, 31, 15, 3].map(Tok::Integer));
        assert_eq!(of("0f3F800000"), [Tok::Float32(0x3F80_0000)]);
        assert_eq!(of("0d3FF0000000000000"), [Tok::Float64(0x3FF0_0000_0000_0000)]);
        assert!(tokens("0f3F").is_err() && tokens("12q").is_err());
    }

    #[test]
    fn comments_vanish_and_lines_are_counted() {
        let all = tokens("a // b\n/* c\n d */ e").expect("tokens");
        assert_eq!(
            all.iter().map(|token| (token.is, token.line)).collect::<Vec<_>>(),
            [(Tok::Word("a"), 1), (Tok::Word("e"), 3)]
        );
        assert!(tokens("/* open").is_err());
    }
}
