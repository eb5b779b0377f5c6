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

/// A run of one case that a server answered.
fn answered(dir: &Path) {
    let mut answering = command(["run", "--data", "sample", "--sessions", "3", "--limit", "1"]);
    answering.arg("--model").arg(server("fine")).arg("--out").arg(dir);
    assert_eq!(ended(answering).code, Some(0));
}

#[test]
fn a_judges_own_template_and_the_place_of_its_reasons_are_used_and_identify_its_verdicts() {
    let root = tempfile::tempdir().unwrap();
    let (dir, prompts) = (root.path().join("run"), root.path().join("prompts"));
    answered(&dir);
    std::fs::create_dir(&prompts).unwrap();
    let judge = server(r#"{"SR": true, "PR": false, "IPA": true}"#);
    let judged = |flags: &[&OsStr]| {
        let mut judging = command(["judge", "--judge", &judge]);
        judging.arg(&dir).args(flags);
        ended(judging)
    };
    let digests = || -> Vec<String> {
        let rows = RunFolder::read(&dir).unwrap().verdicts;
        let mut digests: Vec<String> = rows.into_iter().map(|row| row.rubric.unwrap()).collect();
        digests.dedup();
        digests
    };
    let with_prompts = [OsStr::new("--prompts"), prompts.as_os_str()];
    let missing = judged(&with_prompts);
    assert_eq!(missing.code, Some(1));
    assert!(missing.err.contains("judge.j2"), "{}", missing.err);
    std::fs::write(prompts.join("judge.j2"), "Judge {{ odl }}.").unwrap();
    let unknown = judged(&with_prompts);
    assert_eq!(unknown.code, Some(1));
    assert!(unknown.err.contains("odl") && unknown.err.contains("explanation"), "{}", unknown.err);
    assert!(digests().is_empty());
    std::fs::write(prompts.join("judge.j2"), "Judge {{ old }}.").unwrap();
    // The order of keys is the template's, and this one does not say it.
    let without_effect =
        judged(&[&with_prompts[..], &[OsStr::new("--reasons"), OsStr::new("none")]].concat());
    assert_eq!(without_effect.code, Some(2));
    assert!(without_effect.err.contains("--reasons has no effect"), "{}", without_effect.err);
    for flags in [&with_prompts[..], &[], &[OsStr::new("--reasons"), OsStr::new("last")]] {
        let done = judged(flags);
        assert_eq!(done.code, Some(0), "{}", done.err);
        assert!(done.out.contains("3 of 3 verdicts (0 from before, 3 new, 0 errors)"), "{}", done.out);
    }
    let three = digests();
    assert_eq!(three.len(), 3, "{three:?}");
    assert!(judged(&[OsStr::new("--reasons"), OsStr::new("first")]).out.contains("(3 from before"));

    // A run only says where the file is used.
    let mut running = command(["run", "--data", "sample", "--sessions", "3", "--limit", "1", "--prompts"]);
    running.arg(&prompts).arg("--model").arg(server("fine")).arg("--out").arg(root.path().join("again"));
    let again = ended(running);
    assert_eq!(again.code, Some(0), "{}", again.err);
    assert!(again.err.contains("judge.j2, which answers do not depend on"), "{}", again.err);
    let identity = |dir: &Path| RunFolder::read(dir).unwrap().header.identity.prompts;
    assert_eq!(identity(&dir), identity(&root.path().join("again")));
}
