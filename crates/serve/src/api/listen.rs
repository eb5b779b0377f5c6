//! Connection handling: limits on number, idle time and unread output, so that stalled clients do not hold memory.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio_io_timeout::TimeoutStream;

/// Further connections wait.
const MOST_CONNECTIONS: usize = 512;

/// Timeout for request heads and idle connections.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Timeout for clients that stop reading.
const READING_TIMEOUT: Duration = Duration::from_secs(60);

/// Backoff after a failed accept (out of file descriptors).
const NO_CONNECTION: Duration = Duration::from_millis(100);

/// Interval between looks for a stop.
const LOOK: Duration = Duration::from_millis(50);

/// The connection of a request, in its extensions.
#[derive(Debug)]
pub struct Connection {
    pub peer: Peer,
}

#[derive(Debug, Clone, Copy)]
pub struct Peer(SocketAddr);

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Serves on a runtime of its own until `stop` is set, then until requests have ended or `ending` has.
pub fn run(
    listener: std::net::TcpListener,
    router: Router,
    stop: &AtomicBool,
    ending: impl Future<Output = ()>,
) -> io::Result<()> {
    let stopped = || async {
        while !stop.load(Ordering::Relaxed) {
            tokio::time::sleep(LOOK).await;
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let served = runtime.block_on(async {
        listener.set_nonblocking(true)?;
        let serving = serve(TcpListener::from_std(listener)?, router, stopped());
        let ended = async {
            stopped().await;
            ending.await;
        };
        tokio::select! {
            () = serving => Ok(()),
            () = ended => Ok(()),
        }
    });
    runtime.shutdown_background();
    served
}

/// Accepts connections until `stop` resolves, then waits until each has finished its current request.
async fn serve(listener: TcpListener, router: Router, stop: impl Future<Output = ()>) {
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let (closing, told) = watch::channel(false);
    let accepting = async {
        loop {
            // The semaphore is never closed.
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            let Ok((stream, peer)) = listener.accept().await else {
                tokio::time::sleep(NO_CONNECTION).await;
                continue;
            };
            // Streamed tokens are small and latency matters.
            let _ = stream.set_nodelay(true);
            let connection = Arc::new(Connection { peer: Peer(peer) });
            let (router, mut told) = (router.clone().layer(Extension(connection)), told.clone());
            tokio::spawn(async move {
                let mut stream = TimeoutStream::new(stream);
                stream.set_write_timeout(Some(READING_TIMEOUT));
                let io = TokioIo::new(Box::pin(stream));
                let mut http = http1::Builder::new();
                http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
                let connection = http.serve_connection(io, TowerToHyperService::new(router));
                let mut connection = std::pin::pin!(connection);
                tokio::select! {
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
    closing.closed().await;
}
