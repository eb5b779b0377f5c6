//! Environment of adapters: variables that programs need to run, and those that the command line names. Keys of palimpsest stay out.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::str::FromStr;

/// What interpreters, certificates, caches and devices are found by.
const PASSED: [&str; 28] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "TEMP",
    "TMP",
    "VIRTUAL_ENV",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NO_PROXY",
    "CUDA_HOME",
    "CUDA_VISIBLE_DEVICES",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_HUB_OFFLINE",
    "TRANSFORMERS_OFFLINE",
    "TIKTOKEN_CACHE_DIR",
    "SYSTEMROOT",
    "USERPROFILE",
];
const PASSED_PREFIXES: [&str; 6] = ["LC_", "PYTHON", "PYENV_", "CONDA_", "XDG_", "OMP_"];

/// Endings of names whose values are secrets, passed only by name.
const SECRET: [&str; 6] = ["KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIALS"];

/// `NAME`, with its value in palimpsest's environment, or `NAME=VALUE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    name: String,
    value: Option<String>,
}

impl FromStr for Variable {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (text, None),
        };
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return Err(format!("`{name}` is no name of an environment variable; give NAME, or NAME=VALUE"));
        }
        Ok(Variable { name: name.to_owned(), value })
    }
}

/// All variables of an adapter. No `Debug`: values may be secrets.
#[derive(Clone)]
pub struct Environment(BTreeMap<String, OsString>);

impl Environment {
    /// The passed variables and the named ones. Fails if a named one is not set.
    pub fn with(named: &[Variable]) -> Result<Self, String> {
        let all = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
        let mut variables: BTreeMap<String, OsString> = all.filter(|(name, _)| is_passed(name)).collect();
        for Variable { name, value } in named {
            let value = match value {
                Some(value) => value.into(),
                None => std::env::var_os(name).ok_or_else(|| {
                    format!("the environment variable {name} is not set; set it, or give {name}=VALUE")
                })?,
            };
            variables.insert(name.clone(), value);
        }
        Ok(Environment(variables))
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub(super) fn variables(&self) -> &BTreeMap<String, OsString> {
        &self.0
    }
}

fn is_passed(name: &str) -> bool {
    let is_known = PASSED.contains(&name) || PASSED_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    is_known && !is_secret(name)
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    SECRET.iter().any(|ending| name.ends_with(ending))
}

#[cfg(test)]
mod tests {
    use super::{Environment, Variable, is_passed};

    #[test]
    fn programs_find_what_they_need_and_no_key() {
        for name in ["PATH", "HOME", "LC_ALL", "PYTHONPATH", "CONDA_PREFIX", "CUDA_VISIBLE_DEVICES"] {
            assert!(is_passed(name), "{name}");
        }
        for name in [
            "OPENAI_API_KEY",
            "PALIMPSEST_API_KEY",
            "HF_TOKEN",
            "CONDA_TOKEN",
            "PYTHON_SECRET",
            "XDG_db_password",
            "OPENAI_BASE_URL",
            "HTTPS_PROXY",
        ] {
            assert!(!is_passed(name), "{name}");
        }
    }

    #[test]
    fn a_variable_is_named_or_given_and_must_be_set() {
        let parsed = |text: &str| text.parse::<Variable>();
        let given = Environment::with(&[parsed("MADE_UP_KEY=a=b").unwrap()]).unwrap();
        assert_eq!(given.variables()["MADE_UP_KEY"], "a=b");
        let missing = Environment::with(&[parsed("MADE_UP_AND_NOT_SET").unwrap()]);
        assert!(missing.err().unwrap().contains("MADE_UP_AND_NOT_SET is not set"));
        for wrong in ["", "=x", "two words", "A-B=1"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
