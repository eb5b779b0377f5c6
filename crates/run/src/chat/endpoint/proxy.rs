//! The proxy from the environment, named in errors so that an unnoticed proxy is found.

use ureq::http::Uri;
use ureq::{Proxy, ProxyProtocol};

/// In ureq's order of precedence.
const VARIABLES: [&str; 6] =
    ["ALL_PROXY", "all_proxy", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"];

#[derive(Clone)]
pub(super) struct Between {
    address: String,
    variable: &'static str,
    /// False for SOCKS, which is not supported; requests go direct.
    is_used: bool,
}

impl Between {
    /// The environment's proxy for `url`, and its description for errors.
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
