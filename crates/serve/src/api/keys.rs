//! Keys of clients, each with a name for the log and limits of its own, and the file that lists them.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ApiError;
use super::json::{count, list, read, text};
use palimpsest_core::engine::thread::Scope;
use palimpsest_data::ground::text_file;

const LONGEST_NAME: usize = 64;

/// Most requests at once or a minute.
const MOST: usize = 1_000_000;

/// Digest of a key or token, so that comparison takes equal time for every length.
#[derive(Clone, Copy)]
pub struct Secret([u8; 32]);

impl Secret {
    pub fn of(text: &str) -> Self {
        Secret(Sha256::digest(text.as_bytes()).into())
    }

    pub fn is(&self, sent: &str) -> bool {
        self.equals(&Secret::of(sent))
    }

    /// Takes equal time whatever differs.
    pub fn equals(&self, other: &Secret) -> bool {
        bool::from(self.0.ct_eq(&other.0))
    }
}

/// The keys that a server accepts; none if it asks for none.
#[derive(Debug, Clone, Default)]
pub struct Keys(Vec<Arc<Key>>);

/// One client's key.
pub struct Key {
    pub name: String,
    secret: Secret,
    places: Option<Places>,
    rate: Option<Rate>,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("name", &self.name).finish_non_exhaustive()
    }
}

struct Places {
    most: usize,
    free: Arc<Semaphore>,
}

/// Token bucket: a minute's requests at once, refilled evenly.
struct Rate {
    most: usize,
    bucket: Mutex<Bucket>,
}

struct Bucket {
    left: f64,
    at: Instant,
}

/// A request beyond the limits of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exceeded {
    Places {
        most: usize,
    },
    Rate {
        most: usize,
        /// Seconds until a request is allowed.
        wait: u64,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    #[error("the keys file {}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("the keys file {}: {reason}", path.display())]
    Wrong { path: PathBuf, reason: String },
}

impl Keys {
    /// A single key without limits, called `key`.
    pub fn one(key: &str) -> Self {
        Keys(vec![Arc::new(Key {
            name: "key".to_owned(),
            secret: Secret::of(key),
            places: None,
            rate: None,
        })])
    }

    /// Reads a file of `[[key]]` tables (TOML).
    pub fn read(path: &Path) -> Result<Self, KeysError> {
        let of = |path: &Path| path.to_owned();
        let text =
            text_file::read(path).map_err(|source| KeysError::Unreadable { path: of(path), source })?;
        Keys::parse(&text).map_err(|reason| KeysError::Wrong { path: of(path), reason })
    }

    /// Keys of a file's text. Errors name the entry, counted from 0, and the field, and quote no key.
    pub fn parse(text: &str) -> Result<Self, String> {
        let file: Value = toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            format!("line {}: {}", before.matches('\n').count() + 1, error.message())
        })?;
        // Said without the value, which may be a key.
        let is_list = |keys: &Value| keys.as_array().is_some_and(|keys| keys.iter().all(Value::is_object));
        if file.get("key").is_some_and(|keys| !is_list(keys)) {
            return Err("`key` is no list of tables; begin each key with a line [[key]]".to_owned());
        }
        let file: KeysFile = read(&file).map_err(|error| match error {
            ApiError { code: Some("missing_required_parameter"), param: Some(field), .. }
                if field == "key" =>
            {
                "holds no key; begin each one with a line [[key]]".to_owned()
            }
            ApiError { code: Some("missing_required_parameter"), param: Some(field), .. } => {
                format!("`{field}` is missing")
            }
            error => error.message,
        })?;
        let keys = file.keys.into_iter().enumerate().map(|(nth, entry)| entry.key(nth));
        let keys = Keys(keys.collect::<Result<_, _>>()?);
        keys.check_unique()?;
        Ok(keys)
    }

    fn check_unique(&self) -> Result<(), String> {
        let (mut names, mut digests) = (BTreeMap::new(), BTreeMap::new());
        for (nth, key) in self.0.iter().enumerate() {
            if let Some(first) = names.insert(key.name.as_str(), nth) {
                return Err(format!("`key[{nth}].name` is the name of key[{first}] too; give each its own"));
            }
            if let Some(first) = digests.insert(key.secret.0, nth) {
                return Err(format!("key[{nth}] is the same key as key[{first}]; give each its own"));
            }
        }
        Ok(())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The key that was sent. Compares all keys, so that the time does not depend on its place in the file.
    pub fn find(&self, sent: &str) -> Option<&Arc<Key>> {
        let sent = Secret::of(sent);
        self.0.iter().fold(None, |found, key| if key.secret.equals(&sent) { Some(key) } else { found })
    }
}

impl Key {
    /// Counts a request, and reserves its place if places are limited.
    pub fn admit(&self, now: Instant) -> Result<Option<OwnedSemaphorePermit>, Exceeded> {
        let reserve = |Places { most, free }: &Places| {
            Arc::clone(free).try_acquire_owned().map_err(|_| Exceeded::Places { most: *most })
        };
        let place = self.places.as_ref().map(reserve).transpose()?;
        if let Some(Rate { most, bucket }) = &self.rate {
            let taken = bucket.lock().unwrap_or_else(PoisonError::into_inner).take(*most, now);
            taken.map_err(|wait| Exceeded::Rate { most: *most, wait })?;
        }
        Ok(place)
    }
}

impl Bucket {
    /// Takes a request, or returns the seconds until there is one.
    fn take(&mut self, most: usize, now: Instant) -> Result<(), u64> {
        let (most, minutes) = (most as f64, now.saturating_duration_since(self.at).as_secs_f64() / 60.0);
        self.left = (self.left + most * minutes).min(most);
        self.at = now;
        if self.left < 1.0 {
            return Err(((1.0 - self.left) * 60.0 / most).ceil().max(1.0) as u64);
        }
        self.left -= 1.0;
        Ok(())
    }
}

/// Scope of cached prompts: of a key, if there are keys that do not share, and of a salt, if the request has one.
pub fn scope(key: Option<&Key>, salt: Option<&str>) -> Scope {
    if key.is_none() && salt.is_none() {
        return Scope::default();
    }
    // The first part has a fixed length, and salts are not empty: no two pairs have the same bytes.
    let hash = Sha256::new().chain_update(key.map_or([0; 32], |key| key.secret.0));
    Scope(hash.chain_update(salt.unwrap_or_default()).finalize().into())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeysFile {
    #[serde(rename = "key", deserialize_with = "list::<1, 4096, _, _>")]
    keys: Vec<KeyEntry>,
}

/// Secrets are any value here, so that errors of their type do not quote them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyEntry {
    #[serde(deserialize_with = "name")]
    name: String,
    key: Option<Value>,
    sha256: Option<Value>,
    #[serde(default, deserialize_with = "count::<1, MOST, _, _>")]
    places: Option<usize>,
    #[serde(default, deserialize_with = "count::<1, MOST, _, _>")]
    rate: Option<usize>,
}

/// Names stand in the log and as labels of metrics.
fn name<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let plain = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    let fits =
        |name: &str| (1..=LONGEST_NAME).contains(&name.len()) && plain(name) && !name.starts_with(['-', '.']);
    text(from, "1 to 64 letters, digits and `-_.`, the first no `-` or `.`", fits)
}

impl KeyEntry {
    fn key(self, nth: usize) -> Result<Arc<Key>, String> {
        let KeyEntry { name, key, sha256, places, rate } = self;
        let secret = match (&key, &sha256) {
            (Some(key), None) => {
                key.as_str().filter(|key| can_be_sent(key)).map(Secret::of).ok_or_else(|| {
                    format!(
                        "`key[{nth}].key` is no text that a header can carry; take letters, digits and signs"
                    )
                })?
            }
            (None, Some(hex)) => hex.as_str().and_then(of_hex).map(Secret).ok_or_else(|| {
                format!("`key[{nth}].sha256` is no digest; give the 64 digits of `printf %s KEY | sha256sum`")
            })?,
            (None, None) => return Err(format!("key[{nth}] has neither `key` nor `sha256`; give one")),
            (Some(_), Some(_)) => return Err(format!("key[{nth}] has both `key` and `sha256`; give one")),
        };
        let places = places.map(|most| Places { most, free: Arc::new(Semaphore::new(most)) });
        let rate = rate.map(|most| {
            let bucket = Mutex::new(Bucket { left: most as f64, at: Instant::now() });
            Rate { most, bucket }
        });
        Ok(Arc::new(Key { name, secret, places, rate }))
    }
}

/// True if an Authorization header can carry the key.
pub fn can_be_sent(key: &str) -> bool {
    !key.is_empty() && key.chars().all(|c| c.is_ascii_graphic())
}

fn of_hex(text: &str) -> Option<[u8; 32]> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let digits: Vec<u32> = text.as_bytes().iter().map(digit).collect::<Option<_>>()?;
    let bytes: Vec<u8> =
        digits.chunks(2).map(|pair| pair.iter().fold(0, |sum, d| sum * 16 + *d as u8)).collect();
    bytes.try_into().ok().filter(|_| digits.len() == 64)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Digest of `bobs-key`.
    fn hex() -> String {
        Secret::of("bobs-key").0.iter().map(|byte| format!("{byte:02X}")).collect()
    }

    #[test]
    fn a_file_has_keys_with_names_and_limits_in_plain_or_as_digests() {
        let text = format!(
            "[[key]]\nname = \"alice\"\nkey = \"alices-key\"\nplaces = 2\nrate = 60\n\n[[key]]\nname = \"bob\"\nsha256 = \"{}\"\n",
            hex()
        );
        let keys = Keys::parse(&text).unwrap();
        let name = |sent: &str| keys.find(sent).map(|key| key.name.as_str());
        assert_eq!((name("alices-key"), name("bobs-key")), (Some("alice"), Some("bob")));
        for sent in ["", "alices-ke", "alices-key ", &hex()] {
            assert_eq!(name(sent), None, "{sent}");
        }
        assert_eq!(Keys::one("x").find("x").unwrap().name, "key");
        assert!(Keys::default().find("").is_none() && Keys::default().is_empty());
        assert!(!format!("{keys:?}").contains(|c: char| c.is_ascii_digit()), "no digests: {keys:?}");
    }

    #[test]
    fn a_wrong_file_is_refused_with_entry_and_field_and_without_its_secrets() {
        let entry = |fields: &str| format!("[[key]]\nname = \"a\"\nkey = \"secret-1\"\n[[key]]\n{fields}\n");
        for (text, said) in [
            (String::new(), "holds no key"),
            ("key = \"secret-1\"".to_owned(), "`key` is no list of tables"),
            ("key = [\"secret-1\"]".to_owned(), "`key` is no list of tables"),
            ("[key]\nname = \"a\"\nkey = \"secret-1\"".to_owned(), "`key` is no list of tables"),
            ("[[key]]\nname = \"a\"\nkey = secret\n".to_owned(), "line 3"),
            (entry("key = \"secret-2\""), "`key[1].name` is missing"),
            (entry("name = \"b\""), "key[1] has neither"),
            (entry("name = \"b\"\nkey = \"secret-2\"\nsha256 = \"00\""), "key[1] has both"),
            (entry("name = \"b\"\nkey = 123456"), "`key[1].key` is no text"),
            (entry("name = \"b\"\nkey = \"secret 2\""), "`key[1].key` is no text"),
            (entry("name = \"b\"\nsha256 = \"secret-2\""), "`key[1].sha256` is no digest"),
            (entry("name = \"b c\"\nkey = \"secret-2\""), "`key[1].name` is \"b c\""),
            (entry("name = \"-\"\nkey = \"secret-2\""), "`key[1].name` is \"-\""),
            (entry("name = \"b\"\nkey = \"secret-2\"\nplaces = 0"), "`key[1].places` is 0"),
            (entry("name = \"b\"\nkey = \"secret-2\"\nrate = \"fast\""), "`key[1].rate` is \"fast\""),
            (entry("name = \"b\"\nkey = \"secret-2\"\ncolour = 1"), "`key[1].colour` is no field"),
            (entry("name = \"a\"\nkey = \"secret-2\""), "`key[1].name` is the name of key[0] too"),
            (entry("name = \"b\"\nkey = \"secret-1\""), "key[1] is the same key as key[0]"),
        ] {
            let Err(reason) = Keys::parse(&text) else { panic!("{text} is read") };
            assert!(reason.contains(said), "{reason}");
            assert!(!reason.contains("secret") && !reason.contains("123456"), "{reason}");
        }
        let missing = Keys::read(Path::new("no/such/keys.toml")).unwrap_err();
        assert!(missing.to_string().contains("no/such/keys.toml"), "{missing}");
    }

    #[test]
    fn a_key_has_its_places_and_a_minutes_requests_which_come_back_evenly() {
        let text =
            "[[key]]\nname = \"a\"\nkey = \"k\"\nplaces = 2\n[[key]]\nname = \"b\"\nkey = \"l\"\nrate = 2";
        let keys = Keys::parse(text).unwrap();
        let (a, b, now) = (keys.find("k").unwrap(), keys.find("l").unwrap(), Instant::now());
        let (first, second) = (a.admit(now).unwrap(), a.admit(now).unwrap());
        assert_eq!(a.admit(now).unwrap_err(), Exceeded::Places { most: 2 });
        drop(first);
        assert!(a.admit(now).is_ok() && second.is_some());

        let after = |millis: u64| b.admit(now + Duration::from_millis(millis)).map(|place| place.is_some());
        let exceeded = |wait| Err(Exceeded::Rate { most: 2, wait });
        assert_eq!([after(1000), after(1000), after(1000)], [Ok(false), Ok(false), exceeded(30)]);
        assert_eq!(after(21_500), exceeded(10));
        assert_eq!([after(31_500), after(32_200)], [Ok(false), exceeded(29)]);
        // A long pause leaves no more than a minute's.
        let late = 3_600_000;
        assert_eq!([after(late), after(late), after(late)], [Ok(false), Ok(false), exceeded(30)]);
    }

    #[test]
    fn keys_and_salts_are_scopes_of_their_own() {
        let keys =
            Keys::parse("[[key]]\nname = \"a\"\nkey = \"k\"\n[[key]]\nname = \"b\"\nkey = \"l\"").unwrap();
        let all: Vec<Scope> = [None, keys.find("k"), keys.find("l")]
            .into_iter()
            .flat_map(|key| [None, Some("s"), Some("t")].map(|salt| scope(key.map(|key| &**key), salt)))
            .collect();
        for (nth, one) in all.iter().enumerate() {
            assert_eq!(all.iter().position(|other| other == one), Some(nth));
        }
        assert_eq!(all[0], Scope::default());
    }
}
