//! The page at a Unix socket.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use palimpsest::api::listen::{Address, Listener};
use palimpsest::view::Server;
use palimpsest::view::overview::Overviews;
use palimpsest::view::page::Parts;
use palimpsest::view::state::Shared;

use super::{overview, runs};
use crate::synthetic_run::{self, Plan};

#[test]
fn the_page_is_served_at_a_unix_socket_that_goes_with_it() {
    let root = tempfile::tempdir().unwrap();
    let (dir, path) = (root.path().join("run"), root.path().join("socket"));
    synthetic_run::write(&dir, &Plan { cases: 2, ..Plan::small() });
    let listener = Listener::bind(&Address::Unix(path.clone())).unwrap();
    assert_eq!(listener.address().unwrap().url("/"), format!("unix:{}", path.display()));
    let overviews = Overviews::new(overview());
    let server =
        Server::new(listener, Shared::new(runs(&dir)), Parts::default(), overviews, None, None).unwrap();
    let stop = Arc::<AtomicBool>::default();
    let own = Arc::clone(&stop);
    let serving = std::thread::spawn(move || server.run(&own));
    let mut client = UnixStream::connect(&path).unwrap();
    client.write_all(b"GET /api/runs HTTP/1.1\r\nhost: anything\r\nconnection: close\r\n\r\n").unwrap();
    let mut reply = String::new();
    client.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
    stop.store(true, Ordering::Relaxed);
    serving.join().unwrap().unwrap();
    assert!(!path.exists());
}
