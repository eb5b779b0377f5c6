//! Connections: how many there are, and how long they may take.
//!
//! A client that sends half a request's head, or that does not read what it is sent, is a connection that nobody needs: it is
//! closed after a while, so that places and memory come back. Knows no request.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio_io_timeout::TimeoutStream;

/// Most connections at once; others wait until one ends.
const MOST_CONNECTIONS: usize = 512;

/// Most time to send a request's head, and most time that a connection may be idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Most time that a client may read nothing of what is sent to it.
const READING_TIMEOUT: Duration = Duration::from_secs(60);

/// Wait after the system gave no connection, as it has no more files.
const NO_CONNECTION: Duration = Duration::from_millis(100);

/// Serves connections until `stop` is done, and then until those that there are have ended: each after the request under way.
pub async fn serve(listener: TcpListener, router: Router, stop: impl Future<Output = ()>) {
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let (closing, told) = watch::channel(false);
    let accepting = async {
        loop {
            // Never closed.
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(NO_CONNECTION).await;
                continue;
            };
            // Tokens are small and are wanted at once.
            let _ = stream.set_nodelay(true);
            let (router, mut told) = (router.clone(), told.clone());
            tokio::spawn(async move {
                let mut stream = TimeoutStream::new(stream);
                stream.set_write_timeout(Some(READING_TIMEOUT));
                let io = TokioIo::new(Box::pin(stream));
                let mut http = http1::Builder::new();
                http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
                let connection = http.serve_connection(io, TowerToHyperService::new(router));
                let mut connection = std::pin::pin!(connection);
                tokio::select! {
                    // Its errors are the client's: it went, or was too slow.
                    _ = connection.as_mut() => return drop(place),
                    _ = told.wait_for(|closing| *closing) => {}
                }
                connection.as_mut().graceful_shutdown();
                let _ = connection.await;
                drop(place);
            });
        }
    };
    tokio::select! {
        () = accepting => {}
        () = stop => {}
    }
    drop(listener);
    let _ = closing.send(true);
    drop(told);
    // Until the last connection has ended.
    closing.closed().await;
}
