//! A lenient JSON parser for the output of models and servers: both quotes, unescaped quotes, bare words and keys, trailing commas, raw
//! control characters, unpaired surrogates, truncation. Duplicate keys are kept, because two verdicts under one key contradict each other.

use serde_json::Value;

const DEEPEST: usize = 16;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Node {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    Array(Vec<Node>),
    Object(Vec<(String, Node)>),
}

impl From<Node> for Value {
    fn from(node: Node) -> Self {
        match node {
            Node::Null => Value::Null,
            Node::Bool(is) => is.into(),
            Node::Number(number) if number == (number as i64) as f64 => (number as i64).into(),
            Node::Number(number) => number.into(),
            Node::Text(text) => text.into(),
            Node::Array(items) => items.into_iter().map(Value::from).collect(),
            Node::Object(entries) => {
                entries.into_iter().map(|(key, node)| (key, Value::from(node))).collect()
            }
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Read {
    pub value: Node,
    pub length: usize,
    /// False if truncated; then only complete parts are kept.
    pub finished: bool,
}

fn start(body: &str) -> &str {
    body.trim_start_matches(|c: char| c.is_whitespace() || c == '\u{feff}')
}

/// Parses a server's body, leniently if it is malformed. Unwraps a single-element list (Gemini's errors).
pub(crate) fn parsed(body: &str) -> serde_json::Result<Value> {
    let text = start(body);
    let lenient = || {
        let read = read(text).filter(|read| read.finished && text.starts_with(['{', '[']))?;
        text[read.length..].trim().is_empty().then(|| Value::from(read.value))
    };
    let value = serde_json::from_str(text).or_else(|error| lenient().ok_or(error))?;
    Ok(match value {
        Value::Array(mut list) if list.len() == 1 => list.remove(0),
        value => value,
    })
}

/// True if a body that does not parse ended early, as bodies without a length may. Blank lines are keep-alives.
pub(crate) fn is_cut(body: &str) -> bool {
    let text = start(body);
    let is_open = text.starts_with('{') && read(text).is_some_and(|read| !read.finished);
    is_open || (!body.is_empty() && body.trim().is_empty())
}

/// Parses a value at the start of `text`, ignoring the rest.
pub(crate) fn read(text: &str) -> Option<Read> {
    let mut reader = Reader { text, at: 0, finished: true };
    let value = reader.value(0)?;
    Some(Read { value, length: reader.at, finished: reader.finished })
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    finished: bool,
}

impl Reader<'_> {
    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn skip_space(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start().len();
    }

    fn skip(&mut self, wanted: char) -> bool {
        self.skip_space();
        let found = self.peek() == Some(wanted);
        self.at += if found { wanted.len_utf8() } else { 0 };
        found
    }

    fn ends(&mut self) -> bool {
        let ends = self.peek().is_none();
        self.finished &= !ends;
        ends
    }

    fn value(&mut self, depth: usize) -> Option<Node> {
        self.skip_space();
        match self.peek()? {
            _ if depth > DEEPEST => None,
            '{' => self.object(depth),
            '[' => self.array(depth),
            quote @ ('"' | '\'') => self.string(quote).map(Node::Text),
            _ => self.word().map(|word| scalar(&word)),
        }
    }

    fn object(&mut self, depth: usize) -> Option<Node> {
        self.next();
        let mut entries = Vec::new();
        loop {
            while self.skip(',') {}
            if self.skip('}') || self.ends() {
                return Some(Node::Object(entries));
            }
            let key = match self.peek()? {
                quote @ ('"' | '\'') => self.string(quote),
                _ => self.word(),
            };
            let entry = key.filter(|_| self.skip(':')).and_then(|key| Some((key, self.value(depth + 1)?)));
            match entry {
                Some(entry) => entries.push(entry),
                None if self.ends() => return Some(Node::Object(entries)),
                None => return None,
            }
        }
    }

    fn array(&mut self, depth: usize) -> Option<Node> {
        self.next();
        let mut items = Vec::new();
        loop {
            while self.skip(',') {}
            if self.skip(']') || self.ends() {
                return Some(Node::Array(items));
            }
            match self.value(depth + 1) {
                Some(item) => items.push(item),
                None if self.ends() => return Some(Node::Array(items)),
                None => return None,
            }
        }
    }

    /// A quote closes the string only before `, : } ]` or the end, so that `'doesn't'` parses.
    fn string(&mut self, quote: char) -> Option<String> {
        self.next();
        let mut out = String::new();
        loop {
            match self.next()? {
                '\\' => out.push(self.escaped()?),
                c if c == quote => {
                    let next = self.rest().trim_start().chars().next();
                    if next.is_none_or(|c| matches!(c, ',' | ':' | '}' | ']')) {
                        return Some(out);
                    }
                    out.push(c);
                }
                c => out.push(c),
            }
        }
    }

    /// The character that is written after a backslash.
    fn escaped(&mut self) -> Option<char> {
        Some(match self.next()? {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'u' => match self.unit() {
                Some(high @ 0xd800..0xdc00) if self.rest().starts_with("\\u") => {
                    let mark = self.at;
                    self.at += 2;
                    let low = self.unit().filter(|low| (0xdc00..0xe000).contains(low));
                    if low.is_none() {
                        self.at = mark;
                    }
                    let code = low.map(|low| 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00));
                    code.and_then(char::from_u32).unwrap_or(char::REPLACEMENT_CHARACTER)
                }
                Some(code) => char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER),
                None => 'u',
            },
            other => other,
        })
    }

    fn unit(&mut self) -> Option<u32> {
        let digits = self.rest().get(..4)?;
        let unit = digits.chars().all(|c| c.is_ascii_hexdigit()).then_some(digits)?;
        let unit = u32::from_str_radix(unit, 16).ok()?;
        self.at += 4;
        Some(unit)
    }

    /// A bare word or number; at the end of the text it may be truncated (`1` of `10`).
    fn word(&mut self) -> Option<String> {
        let stop = |c: char| matches!(c, ',' | ':' | '}' | ']' | '{' | '[' | '"' | '\n');
        let Some(length) = self.rest().find(stop) else {
            self.at = self.text.len();
            return None;
        };
        let word = self.rest().get(..length).unwrap_or_default().trim().to_owned();
        self.at += length;
        (!word.is_empty()).then_some(word)
    }
}

/// Also Python's `True`, `None` etc.
fn scalar(word: &str) -> Node {
    match word.to_lowercase().as_str() {
        "true" => Node::Bool(true),
        "false" => Node::Bool(false),
        "null" | "none" => Node::Null,
        _ => match word.parse::<f64>() {
            Ok(number) if number.is_finite() => Node::Number(number),
            _ => Node::Text(word.to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn node(value: &Value) -> Node {
        match value {
            Value::Null => Node::Null,
            Value::Bool(b) => Node::Bool(*b),
            Value::Number(n) => Node::Number(n.as_f64().unwrap()),
            Value::String(s) => Node::Text(s.clone()),
            Value::Array(items) => Node::Array(items.iter().map(node).collect()),
            Value::Object(map) => Node::Object(map.iter().map(|(k, v)| (k.clone(), node(v))).collect()),
        }
    }

    /// Arbitrary JSON. Excludes quotes before closing characters, where the parsers differ on purpose.
    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            (-1e6..1e6_f64).prop_map(Value::from),
            "[a-zA-Zäß€🦀 .!?\\\\\n\t]{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            let keys = "[a-z]{1,4}";
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(keys, inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn json_is_read_as_serde_json_reads_it(value in values(), after in "[ a-z]{0,5}") {
            let whole = json!({ "value": value });
            for text in [whole.to_string(), serde_json::to_string_pretty(&whole).unwrap()] {
                let read = read(&format!("{text}{after}")).unwrap();
                prop_assert_eq!(&read.value, &node(&whole));
                prop_assert_eq!((read.length, read.finished), (text.len(), true));
            }
        }

        #[test]
        fn a_value_that_was_cut_holds_no_more_than_the_whole_one(value in values(), at in 0.0..1.0_f64) {
            let text = json!({ "value": value, "score": 12345 }).to_string();
            let cut = text.floor_char_boundary(1 + (at * (text.len() - 1) as f64) as usize);
            prop_assume!(cut < text.len());
            let read = read(&text[..cut]).unwrap();
            prop_assert!(!read.finished);
            let Node::Object(entries) = read.value else { panic!("{text}") };
            for (key, value) in entries {
                prop_assert!(key != "score" || value == Node::Number(12345.0), "{}", &text[..cut]);
            }
        }

        #[test]
        fn nothing_makes_the_reader_panic(text in "[{}\\[\\]\"',:\\\\u0-9a-f\n €]{0,60}") {
            if let Some(read) = read(&text) {
                prop_assert!(text.is_char_boundary(read.length));
            }
        }
    }

    #[test]
    fn escapes_are_read_and_keys_that_occur_twice_are_kept() {
        let text = r#"{"a": "\u00e9\ud83e\udd80\ud83e!\n\u12", "a": false}"#;
        let expected = [
            ("a".to_owned(), Node::Text("é🦀\u{fffd}!\nu12".to_owned())),
            ("a".to_owned(), Node::Bool(false)),
        ];
        assert_eq!(read(text).unwrap().value, Node::Object(expected.to_vec()));
    }
}
