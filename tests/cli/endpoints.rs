//! Answers and verdicts of an endpoint, as the commands get them.
use super::*;

/// A server on this machine that says the same to everyone. Its thread ends with the test process.
fn server(content: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/v1#stub", listener.local_addr().unwrap());
    let reply = serde_json::json!({
        "choices": [{"message": {"role": "assistant", "content": content}, "finish_reason": "stop"}]
    })
    .to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            read_request(&mut stream);
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{reply}",
                reply.len()
            );
        }
    });
    address
}

/// Reads a request to its end: closing before that would reset the connection.
fn read_request(stream: &mut impl Read) {
    let mut request = Vec::new();
    let mut piece = [0; 4096];
    loop {
        match stream.read(&mut piece) {
            Ok(n) if n > 0 => request.extend_from_slice(&piece[..n]),
            _ => return,
        }
        let Some(head) = request.windows(4).position(|w| w == b"\r\n\r\n") else { continue };
        let text = String::from_utf8_lossy(&request[..head]).to_lowercase();
        let length =
            text.lines().find_map(|l| l.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
        if request.len() >= head + 4 + length.unwrap_or(0) {
            return;
        }
    }
}

#[test]
fn an_endpoint_answers_and_another_one_judges() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    let mut answering =
        command(["run", "--data", "sample", "--sessions", "3", "--limit", "2", "--model", &server("fine")]);
    answering.arg("--out").arg(&dir);
    let answered = ended(answering);
    assert_eq!(answered.code, Some(0), "{}", answered.err);
    let verdicts = r#"{"SR": {"correct": true, "reason": "it is"}, "PR": {"correct": false, "reason": "no"},
        "IPA": {"correct": true, "reason": "yes"}}"#;
    let mut judging = command(["judge", "--judge", &server(verdicts)]);
    judging.arg(&dir).env("PALIMPSEST_API_KEY", "sk-secret-of-this-test");
    let judged = ended(judging);
    assert_eq!(judged.code, Some(0), "{}", judged.err);
    let folder = RunFolder::read(&dir).unwrap();
    assert!(
        folder.answers.iter().all(|row| row.answer.as_deref() == Some("fine") && row.attention.is_none())
    );
    let correct: Vec<_> = folder.verdicts.iter().map(|row| row.correct).collect();
    assert_eq!(correct, [Some(true), Some(false), Some(true), Some(true), Some(false), Some(true)]);
    for (name, bytes) in files(&dir) {
        let secret = b"sk-secret";
        assert!(!bytes.windows(secret.len()).any(|w| w == secret), "{}", name.display());
    }
}

#[test]
fn a_port_that_refuses_is_said_at_once_and_leaves_no_folder() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    // Bound and let go again: nobody listens there now.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("http://127.0.0.1:{port}/v1#m");
    let mut answering = command(["run", "--data", "sample", "--model", &address, "--out"]);
    answering.arg(&dir);
    let refused = ended(answering);
    assert_eq!(refused.code, Some(1));
    assert!(refused.err.contains("is the server running"), "{}", refused.err);
    assert_eq!(refused.err.lines().count(), 1, "{}", refused.err);
    assert!(!dir.exists());
}
