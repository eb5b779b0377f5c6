//! The server that an address names, to which keys and tokens are bound; and when it may be asked again.

use std::fmt;
use std::time::Duration;

use ureq::http::Uri;

/// Scheme, host and port of an http or https address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    pub is_https: bool,
    /// In lower case; an IPv6 address in brackets.
    pub host: String,
    pub port: u16,
}

impl Origin {
    /// `None` for anything but an http or https address. A fragment is ignored.
    pub fn of(address: &str) -> Option<Self> {
        let uri: Uri = address.split('#').next()?.parse().ok()?;
        let is_https = match uri.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let host = uri.host().filter(|host| !host.is_empty())?.to_lowercase();
        let usual = if is_https { 443 } else { 80 };
        Some(Origin { is_https, host, port: uri.port_u16().unwrap_or(usual) })
    }

    /// A secret can be sent: encrypted, or to this machine.
    pub fn is_private(&self) -> bool {
        self.is_https || is_loopback(&self.host)
    }
}

/// `host`, or `host:port` if the port is not the scheme's.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.host)?;
        match (self.is_https, self.port) {
            (true, 443) | (false, 80) => Ok(()),
            (_, port) => write!(f, ":{port}"),
        }
    }
}

/// This machine, which is reached without a proxy.
pub fn is_loopback(host: &str) -> bool {
    let ip = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback() || ip.is_unspecified())
}

/// Parses `Retry-After`: seconds, or a date relative to the local clock.
pub fn retry_after(header: &str) -> Option<Duration> {
    if let Ok(seconds) = header.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let then = jiff::fmt::rfc2822::parse(header.trim()).ok()?.timestamp();
    let wait = then.duration_since(jiff::Timestamp::now());
    Some(Duration::try_from(wait).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_one_server() {
        let shown = |address: &str| Origin::of(address).map(|origin| origin.to_string());
        assert_eq!(shown("https://API.openai.com/v1#m").as_deref(), Some("api.openai.com"));
        assert_eq!(shown("https://h:443/v1").as_deref(), Some("h"));
        assert_eq!(shown("http://h:443/v1").as_deref(), Some("h:443"));
        assert_eq!(shown("http://[::1]:8000/v1#m").as_deref(), Some("[::1]:8000"));
        assert_eq!(shown("https://api.openai.com@elsewhere/v1").as_deref(), Some("elsewhere"));
        for other in ["qwen3-8b", "./models/x", "ftp://h/v1", "local:http", "https://", ""] {
            assert_eq!(shown(other), None, "{other}");
        }
        for (address, is_private) in [
            ("http://127.0.0.1:8000", true),
            ("http://localhost", true),
            ("http://[::1]:1", true),
            ("https://far", true),
            ("http://far", false),
            ("http://192.168.0.7:8000", false),
            ("http://127.0.0.1.far", false),
        ] {
            assert_eq!(Origin::of(address).unwrap().is_private(), is_private, "{address}");
        }
    }

    #[test]
    fn a_server_says_in_seconds_or_by_a_date_when_to_come_back() {
        assert_eq!(retry_after(" 7 "), Some(Duration::from_secs(7)));
        assert_eq!(retry_after("Wed, 21 Oct 2015 07:28:00 GMT"), Some(Duration::ZERO), "it is past");
        let then = jiff::Timestamp::now() + Duration::from_secs(1000);
        let date = jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&then).unwrap();
        let wait = retry_after(&date).unwrap();
        assert!((900..=1000).contains(&wait.as_secs()), "{wait:?}");
        assert_eq!(retry_after("soon"), None);
    }
}
