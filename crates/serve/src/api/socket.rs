//! The bytes and bodies of one connection: time limits, half-closed clients, and whose turn it is ([`Connection`]).
//!
//! A client may end its side after the request and still wait for the answer (RFC 9112, 9.6). One that has gone looks the same: its
//! system sends the same FIN, and refuses only bytes that it is sent afterwards. hyper takes the end of the input for the end of the
//! client, so [`Socket`] keeps it back while an answer is computed. [`Watch`] looks meanwhile whether somebody is still there: before the
//! answer begins it sends `100 Continue`, which clients skip (RFC 9110, 15.2) and closed ones refuse; later the answer itself tells.
//! HTTP/1.0 has no such interim responses; there the client is taken for gone after some seconds.
//!
//! The watch asks the system and reads nothing: hyper does not read while it answers if it already has bytes that followed the request.

use std::error::Error;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Request, Response, Version};
use futures_util::FutureExt;
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use tokio::net::TcpStream;
use tokio::time::{Instant, Interval, MissedTickBehavior, Sleep, interval, sleep, timeout};
use tokio_io_timeout::TimeoutStream;

use super::places::{Connection, Turn};

/// Timeout for clients that stop reading.
const READING_TIMEOUT: Duration = Duration::from_secs(60);

/// Timeout for a whole body.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// Timeout between parts of a body.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval between looks at the client of an answer.
const LOOK: Duration = Duration::from_millis(50);

/// Age of a half-closed connection at its second interim response.
const SECOND_INTERIM: Duration = Duration::from_millis(250);

/// Time that a half-closed client of HTTP/1.0 has.
const HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(10);

/// Time in which the rest of a request may come after its answer.
const LINGER: Duration = Duration::from_secs(1);

const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Rounds of the connection in which a body that came with the end of the input is read.
const ROUNDS: usize = 16;

pub trait Stream: AsyncRead + AsyncWrite + Send + 'static {
    /// The sides that are closed, as far as the system knows: reading once the client has ended its side, writing once it refuses what it
    /// is sent.
    fn closed(&self) -> Ready;
}

fn closed(ready: impl Future<Output = io::Result<Ready>>) -> Ready {
    let both = Ready::READ_CLOSED | Ready::WRITE_CLOSED;
    ready.now_or_never().map_or(Ready::EMPTY, |ready| ready.unwrap_or(both))
}

impl Stream for TcpStream {
    fn closed(&self) -> Ready {
        closed(self.ready(Interest::READABLE | Interest::WRITABLE))
    }
}

#[cfg(unix)]
impl Stream for tokio::net::UnixStream {
    fn closed(&self) -> Ready {
        closed(self.ready(Interest::READABLE | Interest::WRITABLE))
    }
}

/// One task polls both holders, so that none ever waits for the other.
struct Shared<S>(Arc<Mutex<Pin<Box<TimeoutStream<S>>>>>);

impl<S> Shared<S> {
    fn stream(&self) -> MutexGuard<'_, Pin<Box<TimeoutStream<S>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The socket for hyper, and the watch on it, to be polled after hyper's connection.
pub fn watched<S: Stream>(stream: S, connection: &Arc<Connection>) -> (Socket<S>, Watch<S>) {
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(READING_TIMEOUT));
    let stream = Arc::new(Mutex::new(Box::pin(stream)));
    let (own, connection) = (Arc::clone(connection), Arc::clone(connection));
    let socket = Socket { stream: Shared(Arc::clone(&stream)), connection: own, ended: false, rounds: 0 };
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    (socket, Watch { stream: Shared(stream), connection, looks, ended: None, interim: Duration::ZERO })
}

pub struct Watch<S> {
    stream: Shared<S>,
    connection: Arc<Connection>,
    looks: Interval,
    /// When the client's side was first seen to have ended.
    ended: Option<Instant>,
    /// Age of that at which the next interim response is due. It grows, since some clients accept only few of them.
    interim: Duration,
}

impl<S: Stream> Watch<S> {
    /// Ready if the client of the answer under way has gone.
    pub fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Turn::Answer | Turn::Unread = self.connection.turn() {
            let mut stream = self.stream.stream();
            let closed = stream.get_ref().closed();
            if closed.is_write_closed() {
                return Poll::Ready(());
            }
            ready!(self.looks.poll_tick(cx));
            if !closed.is_read_closed() {
                continue;
            }
            let age = self.ended.get_or_insert_with(Instant::now).elapsed();
            match self.connection.silent() {
                Some(Version::HTTP_11) if age >= self.interim => {
                    self.interim = self.interim.saturating_mul(4).max(SECOND_INTERIM);
                    let sent = stream.as_mut().poll_write(cx, INTERIM);
                    if !matches!(sent, Poll::Ready(Ok(count)) if count == INTERIM.len()) {
                        return Poll::Ready(());
                    }
                }
                Some(Version::HTTP_11) | None => {}
                Some(_) if age >= HALF_CLOSED_TIMEOUT => return Poll::Ready(()),
                Some(_) => {}
            }
        }
        Poll::Pending
    }

    /// Reads what the client still sends after the last answer. A socket that is closed before would reset the connection, and the answer
    /// could be lost (RFC 9112, 9.6).
    pub async fn linger(&mut self) {
        let rest = poll_fn(|cx| {
            let mut bytes = [0; 4096];
            loop {
                let mut buf = ReadBuf::new(&mut bytes);
                let read = ready!(self.stream.stream().as_mut().poll_read(cx, &mut buf));
                if read.is_err() || buf.filled().is_empty() {
                    return Poll::Ready(());
                }
            }
        });
        // Clients usually close at once.
        let _ = timeout(LINGER, rest).await;
    }
}

pub struct Socket<S> {
    stream: Shared<S>,
    connection: Arc<Connection>,
    /// The input has ended.
    ended: bool,
    rounds: usize,
}

impl<S: Stream> Socket<S> {
    /// Ready once the end of the input is to be told.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.connection.turn() {
            // The reader of the body runs after this, and may still have the last part of it to read.
            Turn::Body if self.rounds < ROUNDS => {
                self.rounds += 1;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Turn::Head | Turn::Body => Poll::Ready(()),
            // Read again once the answer is sent: `poll_flush` wakes.
            Turn::Answer | Turn::Unread => Poll::Pending,
        }
    }

    /// Notes whose turn a write makes it.
    fn wrote<T>(&self, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        self.connection.wrote(written.is_ready());
        written
    }
}

impl<S: Stream> AsyncRead for Socket<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.ended {
            let before = buf.filled().len();
            ready!(this.stream.stream().as_mut().poll_read(cx, buf))?;
            if buf.filled().len() > before {
                return Poll::Ready(Ok(()));
            }
            this.ended = true;
        }
        this.poll_end(cx).map(Ok)
    }
}

impl<S: Stream> AsyncWrite for Socket<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = this.stream.stream().as_mut().poll_write(cx, buf);
        this.wrote(written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = this.stream.stream().as_mut().poll_write_vectored(cx, bufs);
        this.wrote(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.stream().is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.stream.stream().as_mut().poll_flush(cx))?;
        if this.connection.flushed() && this.ended {
            cx.waker().wake_by_ref();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().stream.stream().as_mut().poll_shutdown(cx)
    }
}

/// A body that comes too slowly.
#[derive(Debug, thiserror::Error)]
pub enum SlowBody {
    #[error("no byte of the request's body came for {} s", SILENCE_TIMEOUT.as_secs())]
    Silent,
    #[error("the request's body did not come within {} s", BODY_TIMEOUT.as_secs())]
    Late,
}

/// A request's body with its time limits.
struct Inbound {
    body: Incoming,
    until: Instant,
    timeout: Pin<Box<Sleep>>,
    connection: Arc<Connection>,
}

impl HttpBody for Inbound {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.body).poll_frame(cx);
        match &polled {
            Poll::Pending => {
                ready!(this.timeout.as_mut().poll(cx));
                let late = Instant::now() >= this.until;
                return Poll::Ready(Some(Err(if late { SlowBody::Late } else { SlowBody::Silent }.into())));
            }
            Poll::Ready(None) => this.connection.received(),
            Poll::Ready(Some(_)) => {
                this.timeout.as_mut().reset(this.until.min(Instant::now() + SILENCE_TIMEOUT));
            }
        }
        polled.map(|frame| frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Inbound {
    fn drop(&mut self) {
        self.connection.received();
    }
}

/// Notes the begin of a request. Its extensions get the connection.
pub fn inbound(request: Request<Incoming>, connection: &Arc<Connection>) -> Request<Body> {
    let whole = request.body().is_end_stream();
    connection.begin(request.version(), whole);
    let mut request = request.map(|body| match whole {
        true => Body::empty(),
        false => Body::new(Inbound {
            body,
            until: Instant::now() + BODY_TIMEOUT,
            timeout: Box::pin(sleep(SILENCE_TIMEOUT)),
            connection: Arc::clone(connection),
        }),
    });
    request.extensions_mut().insert(Arc::clone(connection));
    request
}

/// A response's body, whose end is noted.
pub struct Outbound {
    body: Body,
    connection: Arc<Connection>,
}

impl HttpBody for Outbound {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Outbound {
    fn drop(&mut self) {
        self.connection.ended();
    }
}

pub fn outbound(response: Response<Body>, connection: Arc<Connection>) -> Response<Outbound> {
    response.map(|body| Outbound { body, connection })
}
