//! The page at `/`: open to everyone who can reach the server, and confined by its content security policy.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};
use ureq::http::Response;

use super::{Served, Setting, fixture, serve, serve_path};

fn page(served: &Served, headers: &[(&str, &str)]) -> Response<ureq::Body> {
    let mut request = served.agent.get(served.url("/"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.call().unwrap()
}

fn between<'t>(text: &'t str, open: &str, close: &str) -> &'t str {
    let (_, rest) = text.split_once(open).unwrap();
    let (inside, after) = rest.split_once(close).unwrap();
    assert!(!after.contains(open), "one {open}");
    inside
}

#[test]
fn the_page_runs_its_own_script_and_style_and_reaches_nobody_else() {
    let served = serve("llama-tiny");
    let mut reply = page(&served, &[]);
    let html = reply.body_mut().read_to_string().unwrap();
    let header = |name: &str| reply.headers()[name].to_str().unwrap();
    assert_eq!(header("content-type"), "text/html; charset=utf-8");
    assert_eq!(header("x-content-type-options"), "nosniff");
    let policy = header("content-security-policy");
    let rules: Vec<&str> = policy.split("; ").collect();
    let digest = |text: &str| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)));
    let (script, style) = (between(&html, "<script>", "</script>"), between(&html, "<style>", "</style>"));
    for rule in [
        "default-src 'none'".to_owned(),
        format!("script-src {}", digest(script)),
        format!("style-src {}", digest(style)),
        "connect-src 'self'".to_owned(),
        "frame-ancestors 'none'".to_owned(),
    ] {
        assert!(rules.contains(&rule.as_str()), "{rule}: {policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    // Content that the policy would block, or that could turn text into markup.
    for never in ["http:", "https:", " src=", " style=", " onclick=", "url(", "@import"] {
        assert!(!html.contains(never), "{never}");
    }
    for never in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "localStorage"] {
        assert!(!script.contains(never), "{never}");
    }
}

#[test]
fn the_page_needs_no_key_and_what_it_asks_for_does() {
    let keyed = Setting { key: Some("a-key-of-this-test"), ..Setting::default() };
    let served = serve_path(&fixture("llama-tiny"), keyed);
    assert_eq!(page(&served, &[]).status(), 200);
    assert_eq!(served.get("/v1/models").status, 401);
    // Whatever the origin.
    assert_eq!(page(&served, &[("origin", "http://evil.example")]).status(), 403);
    assert_eq!(page(&served, &[("host", "evil.example")]).status(), 403);
    assert_eq!(page(&served, &[("sec-fetch-site", "cross-site")]).status(), 403);
}

#[test]
fn a_model_says_what_the_page_needs_to_read_its_attention() {
    let served = serve("gpt-oss-tiny");
    let models = served.get("/v1/models").ok();
    let told = &models["data"][0]["palimpsest"];
    let layers: Vec<usize> = serde_json::from_value(told["attention"]["layers"].clone()).unwrap();
    let windows: Vec<Option<usize>> = serde_json::from_value(told["attention"]["windows"].clone()).unwrap();
    assert_eq!(layers.len(), windows.len());
    assert!(windows.iter().any(Option::is_some) && windows.iter().any(Option::is_none), "{windows:?}");
    let asked = serde_json::json!({
        "messages": super::user("Hello"), "max_tokens": 2, "palimpsest": {"rows": ["last"], "heads": "all"}
    });
    let reply = served.chat(asked).ok();
    let attention = &reply["choices"][0]["palimpsest"];
    assert_eq!(attention["layers"], told["attention"]["layers"]);
    let heads = attention["mass"][0].as_array().unwrap().len();
    assert_eq!(told["attention"]["heads"], serde_json::json!(heads));
    assert_eq!(told["context"], 2048);
    assert_eq!(told["dtype"], "f32");
}
