//! The proxy of the environment, for errors to name: one that is used in silence is looked for everywhere else first.

use ureq::http::Uri;
use ureq::{Proxy, ProxyProtocol};

/// Variables that name a proxy, in the order in which ureq reads them.
const VARIABLES: [&str; 6] =
    ["ALL_PROXY", "all_proxy", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"];

/// The proxy between here and an endpoint.
#[derive(Clone)]
pub(super) struct Between {
    /// Its host and port, without a user and a password.
    address: String,
    variable: &'static str,
    /// SOCKS is not supported: requests go without.
    is_used: bool,
}

impl Between {
    /// The proxy of the environment that a request to `url` goes through, and what errors say of it.
    pub fn of(url: &str) -> (Option<Proxy>, Option<Self>) {
        let uri = url.parse::<Uri>();
        let Some(proxy) = Proxy::try_from_env().filter(|proxy| uri.is_ok_and(|uri| !proxy.is_no_proxy(&uri)))
        else {
            return (None, None);
        };
        let same = |name: &&&str| {
            let named = std::env::var(name).ok().and_then(|value| Proxy::new(&value).ok());
            named.is_some_and(|named| named.uri() == proxy.uri())
        };
        let between = Between {
            address: format!("{}:{}", proxy.host(), proxy.port()),
            variable: VARIABLES.iter().find(same).copied().unwrap_or("the environment"),
            is_used: matches!(proxy.protocol(), ProxyProtocol::Http | ProxyProtocol::Https),
        };
        (Some(proxy).filter(|_| between.is_used), Some(between))
    }

    pub fn remedy(&self, host: &str) -> String {
        match self.is_used {
            true => format!(
                "is the proxy running, and meant for this host? NO_PROXY={host} in the environment goes around it"
            ),
            false => format!(
                "is the server running? If it is behind the proxy, name an HTTP proxy in {}",
                self.variable
            ),
        }
    }
}

impl std::fmt::Display for Between {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Between { address, variable, is_used } = self;
        match is_used {
            true => write!(f, "through the proxy {address} of {variable}"),
            false => write!(f, "without the SOCKS proxy {address} of {variable}, which is not supported"),
        }
    }
}
