//! Access: programs on this machine, with the key if there is one.

use serde_json::json;

use ureq::http::Request;

use super::{Setting, fixture, serve, serve_path, try_serve, user};

const KEY: &str = "a-key-of-this-test";

#[test]
fn without_the_key_nothing_is_served_but_health_and_the_page() {
    let served = serve_path(&fixture("llama-tiny"), Setting { key: Some(KEY), ..Setting::default() });
    let body = json!({"model": "llama-tiny", "messages": user("Hello"), "max_tokens": 2});
    let ask = |headers: &[(&str, &str)]| served.post_as("/v1/chat/completions", &body, headers);
    let right = format!("Bearer {KEY}");
    ask(&[("authorization", &right)]).ok();
    ask(&[("authorization", &format!("bearer {KEY}"))]).ok();
    let longer = format!("{right}x");
    for headers in [
        &[][..],
        &[("authorization", "Bearer wrong")],
        &[("authorization", KEY)],
        &[("authorization", &longer)],
    ] {
        let refused = ask(headers);
        assert_eq!((refused.status, &refused.json["error"]["code"]), (401, &json!("invalid_api_key")));
        assert!(!refused.json.to_string().contains(KEY), "the key is in no message");
    }
    for path in ["/v1/models", "/metrics", "/tokenizer_info", "/nowhere"] {
        assert_eq!(served.get(path).status, 401, "{path}");
    }
    assert_eq!(served.get("/health").status, 200);
}

#[test]
fn pages_of_strangers_and_names_that_are_not_this_machines_are_kept_out() {
    let served = serve("llama-tiny");
    let body = json!({"model": "llama-tiny", "messages": user("Hello"), "max_tokens": 2});
    let port = served.address.port();
    let (own, local) = (format!("127.0.0.1:{port}"), format!("localhost:{port}"));
    let origin = format!("http://{own}");
    let ask = |headers: &[(&str, &str)]| {
        let reply = served.post_as("/v1/chat/completions", &body, headers);
        (reply.status, reply.json["error"]["code"].as_str().unwrap_or_default().to_owned())
    };
    let allowed = (200, String::new());
    assert_eq!(ask(&[("host", &local)]), allowed);
    assert_eq!(ask(&[("origin", &origin), ("host", &own)]), allowed);
    for host in ["evil.example", "evil.example:8080", "localhost.evil.example", "10.0.0.7"] {
        assert_eq!(ask(&[("host", host)]), (403, "host_not_allowed".to_owned()), "{host}");
    }
    for origin in ["http://evil.example", "null", "http://localhost:1", "file://"] {
        assert_eq!(ask(&[("origin", origin)]), (403, "origin_not_allowed".to_owned()), "{origin}");
    }
    assert_eq!(ask(&[("sec-fetch-site", "cross-site")]), (403, "origin_not_allowed".to_owned()));
}

#[test]
fn an_address_that_others_can_reach_needs_a_key() {
    let refused = try_serve(&fixture("llama-tiny"), Setting::default(), "0.0.0.0:0");
    let said = refused.err().unwrap().to_string();
    assert!(said.contains("--api-key-file") && said.contains("0.0.0.0"), "{said}");
    let keyed = Setting { key: Some(KEY), ..Setting::default() };
    assert!(try_serve(&fixture("llama-tiny"), keyed, "0.0.0.0:0").is_ok());
}

#[test]
fn pages_and_names_that_the_operator_named_are_served_and_no_others() {
    const PAGE: &str = "http://localhost:3000";
    let page = PAGE;
    let setting = Setting { key: Some(KEY), origins: &[PAGE], hosts: &["ui.local"], ..Setting::default() };
    let served = serve_path(&fixture("llama-tiny"), setting);
    let right = format!("Bearer {KEY}");
    let preflight = |origin: &str, method: &str| {
        let request = Request::builder().method("OPTIONS").uri(served.url("/v1/chat/completions"));
        let request = request.header("origin", origin).header("access-control-request-method", method);
        let request = request.header("access-control-request-headers", "authorization, x-stainless-os");
        served.agent.run(request.body(()).unwrap()).unwrap()
    };
    // A preflight carries no key.
    let asked = preflight(page, "POST");
    let header = |name: &str| asked.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    assert_eq!(asked.status(), 204);
    assert_eq!(header("access-control-allow-origin").as_deref(), Some(page));
    assert_eq!(header("access-control-allow-headers").as_deref(), Some("authorization, x-stainless-os"));
    assert!(header("access-control-allow-methods").unwrap().contains("POST"));
    assert_eq!(header("vary").as_deref(), Some("origin"));
    for origin in ["http://localhost:3001", "https://localhost:3000", "null", "http://localhost:30000"] {
        let refused = preflight(origin, "POST");
        assert_eq!(refused.status(), 403, "{origin}");
        assert!(refused.headers().get("access-control-allow-origin").is_none());
    }
    let body = json!({"model": "llama-tiny", "messages": user("Hello"), "max_tokens": 2}).to_string();
    let ask = |headers: &[(&str, &str)]| served.send("/v1/chat/completions", body.as_bytes(), headers);
    let shared = ask(&[("origin", page), ("authorization", &right), ("sec-fetch-site", "cross-site")]);
    assert_eq!(
        (shared.status().as_u16(), &shared.headers()["access-control-allow-origin"]),
        (200, &page.parse().unwrap())
    );
    // Pages must be able to read errors too.
    let keyless = ask(&[("origin", page)]);
    assert_eq!(
        (keyless.status().as_u16(), &keyless.headers()["access-control-allow-origin"]),
        (401, &page.parse().unwrap())
    );
    let status =
        |headers: &[(&str, &str)]| ask(&[headers, &[("authorization", &right)]].concat()).status().as_u16();
    assert_eq!(status(&[("origin", "http://evil.example")]), 403);
    assert_eq!((status(&[("host", "ui.local")]), status(&[("host", "UI.local:8080")])), (200, 200));
    assert_eq!((status(&[("host", "ui.local.evil.example")]), status(&[("host", "xui.local")])), (403, 403));
    assert_eq!(
        status(&[("origin", "http://ui.local:80"), ("host", "ui.local:80")]),
        200,
        "its own page by that name"
    );
}
