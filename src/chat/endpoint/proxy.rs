//! The proxy of the environment, for errors to name: one that is used in silence is looked for everywhere else first.

use ureq::Proxy;
use ureq::http::Uri;

/// Variables that name a proxy, in the order in which ureq reads them.
const VARIABLES: [&str; 6] =
    ["ALL_PROXY", "all_proxy", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"];

/// The proxy between here and an endpoint.
#[derive(Clone)]
pub(super) struct Between {
    /// Its host and port, without a user and a password.
    address: String,
    variable: &'static str,
}

impl Between {
    /// The proxy of `chosen` that a request to `url` goes through, if any.
    pub fn of(chosen: Option<&Proxy>, url: &str) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let proxy = chosen.filter(|proxy| !proxy.is_no_proxy(&uri))?;
        let same = |name: &&&str| {
            let named = std::env::var(name).ok().and_then(|value| Proxy::new(&value).ok());
            named.is_some_and(|named| named.uri() == proxy.uri())
        };
        let variable = VARIABLES.iter().find(same).copied().unwrap_or("the environment");
        Some(Between { address: format!("{}:{}", proxy.host(), proxy.port()), variable })
    }

    /// The remedy where it cannot be passed.
    pub fn remedy(&self, host: &str) -> String {
        format!(
            "is the proxy running, and meant for this host? NO_PROXY={host} goes around it (it is of {})",
            self.variable
        )
    }
}

impl std::fmt::Display for Between {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "through the proxy {} of {}", self.address, self.variable)
    }
}
