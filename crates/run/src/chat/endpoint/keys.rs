//! Keys of endpoints: which server gets which, and their removal from replies.

use std::fmt;

use ureq::http::HeaderValue;

use crate::chat::ChatError;
use crate::http::{Origin, is_loopback};

/// The key of a command's only remote server, or of servers on this machine.
const KEY: &str = "PALIMPSEST_API_KEY";
/// The key of [`OPENAI`] alone.
const OPENAI_KEY: &str = "OPENAI_API_KEY";
const OPENAI: &str = "api.openai.com";

/// Shorter keys, such as `none` and `EMPTY`, keep nothing secret, and replacing them would change answers.
const SHORTEST_SECRET: usize = 8;

const REDACTED: &[u8] = b"[key]";

/// Flags that bind keys to servers.
#[derive(Debug, Clone, Default, PartialEq, clap::Args)]
pub struct KeyArgs {
    /// Key of an endpoint: its host, or HOST:PORT, and the name of the environment variable that holds the key, never the key itself
    /// (repeatable) [default: OPENAI_API_KEY for api.openai.com, PALIMPSEST_API_KEY for the command's only other remote host or, if
    /// there is none, for this machine]
    #[arg(long = "key", value_name = "HOST=VARIABLE", help_heading = "Endpoint")]
    bindings: Vec<String>,
    /// Allow a key to be sent over http, unencrypted, to another machine
    #[arg(long, help_heading = "Endpoint")]
    key_over_http: bool,
}

/// A value of `--key`.
struct Binding<'a> {
    place: &'a str,
    host: String,
    port: Option<u16>,
    variable: &'a str,
}

impl<'a> Binding<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let (place, variable) = text.split_once('=')?;
        let is_name = !variable.starts_with(|first: char| first.is_ascii_digit())
            && variable.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let (host, port) = match place.rsplit_once(':') {
            // The last colon of an IPv6 address without a port is within its brackets.
            Some((host, port)) if !port.contains(']') => (host, Some(port.parse().ok()?)),
            _ => (place, None),
        };
        let is_host = !host.is_empty() && !host.contains(['/', '@']);
        (is_name && !variable.is_empty() && is_host).then(|| Binding {
            place,
            host: host.to_lowercase(),
            port,
            variable,
        })
    }

    fn names(&self, server: &Origin) -> bool {
        self.host == server.host && self.port.is_none_or(|port| port == server.port)
    }
}

impl KeyArgs {
    /// The keys of a command. `models` are all that it names; those that are no addresses are ignored.
    pub fn of<'a>(&self, models: impl IntoIterator<Item = &'a str>) -> Result<Keys, ChatError> {
        let set = |name: &str| std::env::var(name).ok();
        self.resolved(models.into_iter().filter_map(Origin::of).collect(), &set)
    }

    /// True if a `--key` names the server of `address`.
    pub fn names(&self, address: &str) -> bool {
        let named = |server| {
            self.bindings.iter().filter_map(|text| Binding::parse(text)).any(|one| one.names(&server))
        };
        Origin::of(address).is_some_and(named)
    }

    fn resolved(
        &self,
        mut servers: Vec<Origin>,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Keys, ChatError> {
        let key = |name: &str| {
            let secret = variable(name).map(|key| key.trim().to_owned()).filter(|key| !key.is_empty());
            secret.map(|secret| Key::new(name, &secret)).transpose()
        };
        servers.sort();
        servers.dedup();
        let bindings = self.bindings(&servers)?;
        // A variable that --key names goes nowhere else.
        let is_free = |name: &str| bindings.iter().all(|binding| binding.variable != name);
        let mut keys = Vec::new();
        let mut others = Vec::new();
        for server in servers {
            let named = bindings.iter().filter(|binding| binding.names(&server));
            if let Some(Binding { place, variable, .. }) = named.max_by_key(|binding| binding.port.is_some())
            {
                // The name is not repeated: it may be the key itself, given by mistake.
                let Some(key) = key(variable)? else {
                    return Err(ChatError::from(format!(
                        "--key {place}=...: this environment variable is not set; set it to the key of {place} (--key takes the name of a \
                         variable, not the key itself)"
                    )));
                };
                keys.push((server, key));
                continue;
            }
            let is_openai = server.is_https && server.host == OPENAI && server.port == 443;
            match if is_openai && is_free(OPENAI_KEY) { key(OPENAI_KEY)? } else { None } {
                Some(key) => keys.push((server, key)),
                None => others.push(server),
            }
        }
        if !others.is_empty()
            && is_free(KEY)
            && let Some(key) = key(KEY)?
        {
            let remote = others.iter().filter(|server| !is_loopback(&server.host)).collect::<Vec<_>>();
            if let ([first, second, ..], true) = (&remote[..], key.is_secret()) {
                // A host without a port would name both servers of a machine.
                let place = |server: &Origin| match first.host == second.host {
                    true => format!("{}:{}", server.host, server.port),
                    false => server.to_string(),
                };
                return Err(ChatError::from(format!(
                    "{KEY} is one key, and the command names two servers, {first} and {second}; say which of them gets it: --key {}={KEY}, \
                     and if the other needs a key, --key {}=VARIABLE",
                    place(first),
                    place(second)
                )));
            }
            let only_here = remote.is_empty();
            let gets_it = |server: &Origin| only_here || !is_loopback(&server.host);
            keys.extend(others.into_iter().filter(gets_it).map(|server| (server, key.clone())));
        }
        let in_the_clear = |(server, key): &&(Origin, Key)| !server.is_private() && key.is_secret();
        match keys.iter().find(in_the_clear) {
            Some((server, key)) if !self.key_over_http => Err(ChatError::from(format!(
                "the key in {} would go to {server} over http, unencrypted; give the https:// address, unset {0} if the server needs no \
                 key, or add --key-over-http",
                key.source
            ))),
            _ => Ok(Keys(keys)),
        }
    }

    fn bindings(&self, servers: &[Origin]) -> Result<Vec<Binding<'_>>, ChatError> {
        // A value that is no binding may hold a key, so it is not repeated.
        let wrong = || {
            ChatError::from(
                "--key takes HOST=VARIABLE: the host, or HOST:PORT, of an endpoint, and the name of the environment variable that holds \
                 its key, not the key itself"
                    .to_owned(),
            )
        };
        let parsed = self.bindings.iter().map(|text| Binding::parse(text).ok_or_else(wrong));
        let bindings = parsed.collect::<Result<Vec<_>, _>>()?;
        let other = |one: &Binding<'_>, two: &Binding<'_>| {
            (&one.host, one.port) == (&two.host, two.port) && one.variable != two.variable
        };
        if let Some(Binding { place, .. }) =
            bindings.iter().find(|one| bindings.iter().any(|two| other(one, two)))
        {
            return Err(ChatError::from(format!(
                "--key names {place} twice, with two variables; give one of them"
            )));
        }
        let idle = |binding: &&Binding<'_>| !servers.iter().any(|server| binding.names(server));
        match bindings.iter().find(idle) {
            None => Ok(bindings),
            Some(Binding { place, .. }) => {
                let all: Vec<String> = servers.iter().map(Origin::to_string).collect();
                let all = if all.is_empty() { "none".to_owned() } else { all.join(", ") };
                Err(ChatError::from(format!(
                    "--key {place}: the command calls no endpoint there; its endpoints are at: {all}"
                )))
            }
        }
    }
}

/// Keys by the servers that get them.
#[derive(Debug, Clone, Default)]
pub struct Keys(Vec<(Origin, Key)>);

impl Keys {
    pub(super) fn of(&self, address: &str) -> Option<Key> {
        let server = Origin::of(address)?;
        self.0.iter().find(|(other, _)| *other == server).map(|(_, key)| key.clone())
    }
}

#[derive(Clone)]
pub struct Key {
    /// Its variable, for messages.
    source: String,
    secret: String,
    pub(super) header: HeaderValue,
}

impl Key {
    pub fn new(source: &str, secret: &str) -> Result<Self, ChatError> {
        let mut header = HeaderValue::from_str(&format!("Bearer {secret}")).map_err(|_| {
            ChatError::from(format!(
                "{source} holds characters that no HTTP header can carry; set it to the bare key"
            ))
        })?;
        header.set_sensitive(true);
        Ok(Key { source: source.to_owned(), secret: secret.to_owned(), header })
    }

    fn is_secret(&self) -> bool {
        self.secret.len() >= SHORTEST_SECRET
    }

    /// `text` with `[key]` in place of the key, also where JSON escapes some of its characters.
    pub(super) fn redacted(&self, text: Vec<u8>) -> Vec<u8> {
        if !self.is_secret() {
            return text;
        }
        let (mut kept, mut copied, mut at) = (Vec::new(), 0, 0);
        while at < text.len() {
            match self.length_at(&text[at..]) {
                None => at += 1,
                Some(length) => {
                    kept.extend_from_slice(&text[copied..at]);
                    kept.extend_from_slice(REDACTED);
                    at += length;
                    copied = at;
                }
            }
        }
        if copied == 0 {
            return text;
        }
        kept.extend_from_slice(&text[copied..]);
        kept
    }

    /// Length of the key at the start of `text`.
    fn length_at(&self, text: &[u8]) -> Option<usize> {
        let mut rest = text;
        for byte in self.secret.bytes() {
            rest = match rest {
                [b'\\', b'u', a, b, c, d, rest @ ..] if code([*a, *b, *c, *d]) == Some(byte.into()) => rest,
                [b'\\', next, rest @ ..] if *next == byte => rest,
                [next, rest @ ..] if *next == byte => rest,
                _ => return None,
            };
        }
        Some(text.len() - rest.len())
    }

    /// The advice where a server refuses the key.
    pub(super) fn refused(&self, host: &str) -> String {
        let Key { source, .. } = self;
        format!("does {source} hold a key of this server? --key {host}=VARIABLE names another variable")
    }
}

/// The advice where a server refuses a request without a key.
pub(super) fn wanted(host: &str) -> String {
    format!(
        "no key was sent: set {KEY}, or name the variable that holds this server's key by --key {host}=VARIABLE ({OPENAI_KEY} goes to \
         {OPENAI} alone)"
    )
}

fn code(hex: [u8; 4]) -> Option<u32> {
    u32::from_str_radix(std::str::from_utf8(&hex).ok()?, 16).ok()
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SET: [(&str, &str); 4] = [
        (KEY, "pal-12345678"),
        (OPENAI_KEY, " oai-12345678\n"),
        ("OTHER_KEY", "oth-12345678"),
        ("EMPTY_KEY", " "),
    ];

    /// Servers with the variables of their keys, for a command line `FLAG... ADDRESS...` and the variables that are set.
    fn keys(line: &str, set: &[&str]) -> Result<String, String> {
        let (mut args, mut servers) = (KeyArgs::default(), Vec::new());
        let mut words = line.split(' ');
        while let Some(word) = words.next() {
            match word {
                "--key" => args.bindings.push(words.next().unwrap().to_owned()),
                "--key-over-http" => args.key_over_http = true,
                address => servers.push(Origin::of(address).unwrap()),
            }
        }
        let variable = |name: &str| {
            let found = SET.iter().find(|(known, _)| *known == name && set.contains(known));
            found.map(|(_, key)| (*key).to_owned())
        };
        let keys = args.resolved(servers, &variable).map_err(|error| error.to_string())?;
        let shown: Vec<String> =
            keys.0.iter().map(|(server, key)| format!("{server}={}", key.source)).collect();
        for (_, key) in &keys.0 {
            let (_, secret) = SET.iter().find(|(name, _)| *name == key.source).unwrap();
            assert_eq!(key.secret, secret.trim());
            assert!(!format!("{key:?}").contains(&key.secret));
        }
        Ok(shown.join(" "))
    }

    #[test]
    fn each_server_gets_its_own_key_or_none() {
        let both = [KEY, OPENAI_KEY, "OTHER_KEY"];
        for (line, set, expected) in [
            // OPENAI_API_KEY goes to OpenAI alone, over https.
            ("https://api.openai.com/v1", &[OPENAI_KEY][..], "api.openai.com=OPENAI_API_KEY"),
            ("https://api.openai.com:444/v1", &[OPENAI_KEY], ""),
            ("http://api.openai.com/v1", &[OPENAI_KEY], ""),
            ("https://openai.com/v1", &[OPENAI_KEY], ""),
            ("http://127.0.0.1:8000/v1", &[OPENAI_KEY], ""),
            ("--key far=OPENAI_API_KEY https://far/v1", &[OPENAI_KEY], "far=OPENAI_API_KEY"),
            // PALIMPSEST_API_KEY goes to the only remote server, or to this machine.
            ("https://far/v1", &[KEY], "far=PALIMPSEST_API_KEY"),
            ("https://api.openai.com/v1", &[KEY], "api.openai.com=PALIMPSEST_API_KEY"),
            ("https://api.openai.com/v1", &both, "api.openai.com=OPENAI_API_KEY"),
            (
                "https://api.openai.com/v1 https://far/v1",
                &both,
                "api.openai.com=OPENAI_API_KEY far=PALIMPSEST_API_KEY",
            ),
            ("https://far/v1 https://far/v2", &[KEY], "far=PALIMPSEST_API_KEY"),
            (
                "http://127.0.0.1:1/v1 http://localhost:2/v1",
                &[KEY],
                "127.0.0.1:1=PALIMPSEST_API_KEY localhost:2=PALIMPSEST_API_KEY",
            ),
            ("http://127.0.0.1:1/v1 https://far/v1", &[KEY], "far=PALIMPSEST_API_KEY"),
            // --key comes first, HOST:PORT before HOST, and its variable goes nowhere else.
            (
                "--key far=OTHER_KEY https://far/v1 https://near/v1",
                &both,
                "far=OTHER_KEY near=PALIMPSEST_API_KEY",
            ),
            ("--key FAR=PALIMPSEST_API_KEY https://far/v1 https://near/v1", &both, "far=PALIMPSEST_API_KEY"),
            (
                "--key far=OTHER_KEY --key far:8443=PALIMPSEST_API_KEY https://far/v1 https://far:8443/v1",
                &both,
                "far=OTHER_KEY far:8443=PALIMPSEST_API_KEY",
            ),
            ("--key [::1]:80=OTHER_KEY http://[::1]/v1", &both, "[::1]=OTHER_KEY"),
            ("--key [::1]=OTHER_KEY http://[::1]:9/v1", &both, "[::1]:9=OTHER_KEY"),
            // Nothing is set, or nothing is called.
            ("http://far/v1", &[], ""),
            ("http://far/v1", &[OPENAI_KEY], ""),
            ("--key-over-http http://far/v1", &[KEY], "far=PALIMPSEST_API_KEY"),
        ] {
            assert_eq!(keys(line, set).as_deref(), Ok(expected), "{line} {set:?}");
        }
    }

    #[test]
    fn a_key_whose_server_is_unclear_or_that_would_be_read_on_the_way_is_an_error_with_its_flag() {
        for (line, set, parts) in [
            (
                "https://far/v1 https://near:8443/v1",
                &[KEY][..],
                &["far and near:8443", "--key far=PALIMPSEST_API_KEY"][..],
            ),
            (
                "https://far/v1 https://far:8443/v1",
                &[KEY],
                &["far and far:8443", "--key far:443=PALIMPSEST_API_KEY", "--key far:8443="],
            ),
            ("http://far:8000/v1", &[KEY], &["far:8000 over http", "--key-over-http", "PALIMPSEST_API_KEY"]),
            ("--key far=OTHER_KEY http://far/v1", &["OTHER_KEY"], &["OTHER_KEY", "--key-over-http"]),
            ("--key far=OTHER_KEY https://far/v1", &[KEY], &["--key far=...", "is not set"]),
            ("--key far=EMPTY_KEY https://far/v1", &["EMPTY_KEY"], &["--key far=...", "is not set"]),
            // A key in place of its variable's name.
            ("--key far=sk12345678 https://far/v1", &[], &["--key far=...", "not the key itself"]),
            ("--key far=OTHER_KEY --key FAR=sk12345678 https://far/v1", &["OTHER_KEY"], &["far twice"]),
            ("--key far:443=OTHER_KEY --key far:443=K https://far/v1", &["OTHER_KEY"], &["far:443 twice"]),
            ("--key far:1=OTHER_KEY https://far/v1", &["OTHER_KEY"], &["--key far:1", "at: far"]),
        ] {
            let error = keys(line, set).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{line}: {error}");
            assert!(!error.contains("12345678"), "{error}");
        }
        for wrong in [
            "sk-12345678",
            "far=sk-12345678",
            "=OTHER_KEY",
            "far=",
            "https://far=OTHER_KEY",
            "far:x=OTHER_KEY",
        ] {
            let error = keys(&format!("--key {wrong} https://far/v1"), &[]).unwrap_err();
            assert!(error.contains("HOST=VARIABLE") && !error.contains(wrong), "{error}");
        }
    }

    #[test]
    fn a_key_is_redacted_however_json_writes_it_and_a_short_one_changes_nothing() {
        let redacted = |key: &str, text: &str| {
            let key = Key::new("K", key).unwrap();
            String::from_utf8(key.redacted(text.as_bytes().to_vec())).unwrap()
        };
        for (text, expected) in [
            ("", ""),
            ("no key here: sk/a+b=", "no key here: sk/a+b="),
            ("sk/a+b==9", "[key]"),
            ("ssk/a+b==9sk/a+b==9.", "s[key][key]."),
            (r#"{"key": "sk\/a\u002b\u0062=\u003D9"}"#, r#"{"key": "[key]"}"#),
            (r"sk\u002fa\u002Bb==9 é", "[key] é"),
            (r"sk\u002fa\u00", r"sk\u002fa\u00"),
        ] {
            assert_eq!(redacted("sk/a+b==9", text), expected);
        }
        for key in ["none", "EMPTY", "e", "1234567"] {
            let text = "none of it is EMPTY: 1234567";
            assert_eq!(redacted(key, text), text);
        }
    }
}
