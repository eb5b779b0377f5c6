//! Listening: a TCP port or a Unix socket, and the connections to it.
//!
//! Serves the router of `serve` and that of `view`. `places` says which connections may stay, `socket`
//! limits the time of each.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
#[cfg(unix)]
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::http::header::HOST;
use axum::http::{Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::sync::{Notify, watch};

use super::error::ApiError;
pub use super::places::{Connection, MOST_KNOWN, MOST_STRANGERS, Peer};
use super::places::{Places, Turn};
use super::socket::{Stream, Watch, inbound, outbound, watched};
#[cfg(unix)]
use super::socket_file::SocketFile;

/// Timeout for the first request head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout for later heads, from the end of the previous answer on.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Backoff after a failed accept, unless a connection could be closed for the newcomer.
const NO_CONNECTION: Duration = Duration::from_millis(100);

/// Open files for all connections, with those of a model and its caches.
#[cfg(unix)]
const OPEN_FILES: libc::rlim_t = 2048;

/// Bytes of a request head; longer ones get status 431.
const LONGEST_HEAD: usize = 64 << 10;

/// Interval between looks for a stop.
const LOOK: Duration = Duration::from_millis(50);

/// Address to listen at.
#[derive(Debug, Clone)]
pub enum Address {
    Tcp(SocketAddr),
    /// A Unix socket of this path.
    Unix(PathBuf),
}

impl Address {
    /// False if other machines reach it.
    pub fn is_local(&self) -> bool {
        match self {
            Address::Tcp(address) => address.ip().is_loopback(),
            Address::Unix(_) => true,
        }
    }

    /// URL of `path`. There is none for a Unix socket, which is named alone.
    pub fn url(&self, path: &str) -> String {
        match self {
            Address::Tcp(address) => format!("http://{address}{path}"),
            Address::Unix(_) => self.to_string(),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    /// The file is removed when the listener is dropped.
    #[cfg(unix)]
    Unix(UnixListener, SocketFile),
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Listener::Tcp(listener)
    }
}

impl Listener {
    pub fn bind(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => TcpListener::bind(address).map(Listener::Tcp),
            #[cfg(unix)]
            Address::Unix(path) => {
                SocketFile::bind(path).map(|(listener, file)| Listener::Unix(listener, file))
            }
            #[cfg(not(unix))]
            Address::Unix(_) => {
                Err(io::Error::new(io::ErrorKind::Unsupported, "this system has no Unix sockets"))
            }
        }
    }

    pub fn address(&self) -> io::Result<Address> {
        match self {
            Listener::Tcp(listener) => listener.local_addr().map(Address::Tcp),
            #[cfg(unix)]
            Listener::Unix(_, file) => Ok(Address::Unix(file.path().to_owned())),
        }
    }

    /// Removes the file of a Unix socket before an exit that drops nothing.
    pub fn removal(&self) -> Box<dyn Fn() + Send> {
        match self {
            Listener::Tcp(_) => Box::new(|| {}),
            #[cfg(unix)]
            Listener::Unix(_, file) => Box::new(file.removal()),
        }
    }

    /// Address of a TCP listener.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match self.address()? {
            Address::Tcp(address) => Ok(address),
            Address::Unix(_) => Err(io::Error::new(io::ErrorKind::Unsupported, "a Unix socket has no port")),
        }
    }
}

/// Refuses a request with two Host headers or a whole URL as its target: the server and a proxy before it could each believe another one.
pub fn well_formed<B>(request: &Request<B>) -> Result<(), ApiError> {
    let refused = |code, message| Err(ApiError::new(StatusCode::BAD_REQUEST, Some(code), message));
    if request.headers().get_all(HOST).iter().nth(1).is_some() {
        return refused("repeated_host", "the request has more than one Host header; send one");
    }
    if request.uri().authority().is_some() {
        let message = "the request's target is a whole URL, which is for proxies, and this server is none; send the path alone, and the \
                       host in the Host header";
        return refused("absolute_target", message);
    }
    Ok(())
}

/// Counts the request's connection as a known client's, to be called once the request has passed the access check.
pub fn admit<B>(request: &Request<B>) -> Result<(), ApiError> {
    match request.extensions().get::<Arc<Connection>>() {
        Some(connection) if !connection.known() => {
            let message = "as many connections as fit are being answered; try again later";
            let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, Some("connections_full"), message);
            Err(error.retry_after(1))
        }
        _ => Ok(()),
    }
}

/// Raises the soft limit of open files, which some systems set below the number of connections that are served. Errors are ignored.
#[cfg(unix)]
fn allow_files() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writes, and nothing else refers to it.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 || limit.rlim_cur >= OPEN_FILES {
        return;
    }
    limit.rlim_cur = limit.rlim_max.min(OPEN_FILES);
    // SAFETY: `limit` is initialised and valid for reads.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
}

/// Serves on a runtime of its own until `stop` is set, then until requests have ended or `ending` has, at whose first step the router
/// begins to refuse.
pub fn run(
    listener: Listener,
    router: Router,
    stop: &AtomicBool,
    ending: impl Future<Output = ()>,
) -> io::Result<()> {
    #[cfg(unix)]
    allow_files();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let served = runtime.block_on(async {
        let stopped = Notify::new();
        let ended = async {
            while !stop.load(Ordering::Relaxed) {
                tokio::time::sleep(LOOK).await;
            }
            stopped.notify_one();
            ending.await;
        };
        tokio::select! {
            served = listen(listener, router, stopped.notified()) => served,
            () = ended => Ok(()),
        }
    });
    runtime.shutdown_background();
    served
}

async fn listen(listener: Listener, router: Router, stop: impl Future<Output = ()>) -> io::Result<()> {
    match listener {
        Listener::Tcp(listener) => {
            listener.set_nonblocking(true)?;
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let accept = async move || -> io::Result<_> {
                let (stream, address) = listener.accept().await?;
                // Streamed tokens are small and latency matters.
                let _ = stream.set_nodelay(true);
                Ok((stream, Peer::Network(address)))
            };
            serve(accept, router, stop).await;
        }
        #[cfg(unix)]
        Listener::Unix(listener, file) => {
            listener.set_nonblocking(true)?;
            let listener = tokio::net::UnixListener::from_std(listener)?;
            let accept = async move || -> io::Result<_> {
                let _held = &file;
                Ok((listener.accept().await?.0, Peer::Unix))
            };
            serve(accept, router, stop).await;
        }
    }
    Ok(())
}

/// Serves connections until `stop` resolves, then until each has finished its current request. Those that come meanwhile are served, so
/// that they are told of the end, but not waited for.
async fn serve<S: Stream>(
    accept: impl AsyncFn() -> io::Result<(S, Peer)>,
    router: Router,
    stop: impl Future<Output = ()>,
) {
    let places = Arc::<Places>::default();
    let (closing, late) = (watch::Sender::new(false), watch::Sender::new(false));
    let accepting = async {
        loop {
            match accept().await {
                Ok((stream, peer)) => {
                    let connection = places.connection(peer);
                    let seated = Seated { places: Arc::clone(&places), connection: Arc::clone(&connection) };
                    let told = if *closing.borrow() { late.subscribe() } else { closing.subscribe() };
                    let task = tokio::spawn(talk(stream, router.clone(), seated, told));
                    places.seat(connection, task.abort_handle());
                }
                // A client that has already gone.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                // Usually there are no file descriptors left.
                Err(_) if places.close_one() => {}
                Err(_) => tokio::time::sleep(NO_CONNECTION).await,
            }
            // A newcomer's head is read, or the closed connection's file freed, before many others can come.
            tokio::task::yield_now().await;
        }
    };
    let ended = async {
        stop.await;
        closing.send_replace(true);
        closing.closed().await;
    };
    // The stop comes first: the router already refuses, and a client that was told so and connects again is served as a late one.
    tokio::select! {
        biased;
        () = ended => {}
        () = accepting => {}
    }
}

/// Gives its place back on drop, also if the task is aborted.
struct Seated {
    places: Arc<Places>,
    connection: Arc<Connection>,
}

impl Drop for Seated {
    fn drop(&mut self) {
        self.places.leave(&self.connection);
    }
}

async fn talk<S: Stream>(stream: S, router: Router, seated: Seated, mut told: watch::Receiver<bool>) {
    let connection = &seated.connection;
    let (socket, mut watch) = watched(stream, connection);
    let router = TowerToHyperService::new(router);
    let service = service_fn(|request: Request<Incoming>| {
        let connection = Arc::clone(connection);
        let again = connection.begun();
        let reply = router.call(inbound(request, &connection));
        async move {
            if again {
                // Others have their turn between the requests of one connection, which may all have come at once.
                tokio::task::yield_now().await;
            }
            reply.await.map(|reply| outbound(reply, connection))
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(IDLE_TIMEOUT).max_buf_size(LONGEST_HEAD);
    let mut talking = pin!(http.serve_connection(TokioIo::new(socket), service));
    let silence = async {
        tokio::time::sleep(HEAD_TIMEOUT).await;
        if connection.begun() {
            std::future::pending::<()>().await;
        }
    };
    let over = tokio::select! {
        ended = ended_or_gone(talking.as_mut(), &mut watch) => Some(ended),
        () = silence => Some(false),
        _ = told.wait_for(|closing| *closing) => None,
    };
    if let Some(ended) = over {
        // The server's end need not wait for this.
        drop(told);
        if ended {
            watch.linger().await;
        }
        return;
    }
    talking.as_mut().graceful_shutdown();
    // A request that has not yet come would be refused, and must not hold the shutdown up.
    if [Turn::Answer, Turn::Unread].contains(&connection.turn()) {
        ended_or_gone(talking, &mut watch).await;
    }
}

/// Waits for the end of a connection (true), or for the end of its client.
async fn ended_or_gone<S: Stream>(mut talking: Pin<&mut impl Future>, watch: &mut Watch<S>) -> bool {
    std::future::poll_fn(|cx| match talking.as_mut().poll(cx) {
        Poll::Ready(_) => Poll::Ready(true),
        Poll::Pending => watch.poll_gone(cx).map(|()| false),
    })
    .await
}
