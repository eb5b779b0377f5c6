//! A small HTTP server on loopback, with buffered requests and responses. Serves the model proxy and the scripted model.
//! Not compiled in without the feature `serve`.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Value, json};

#[derive(Debug, Clone, Default)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub authorization: Option<String>,
    pub body: Vec<u8>,
}

#[derive(Debug, Clone)]
pub struct Response {
    pub status: u16,
    pub content_type: String,
    pub body: Vec<u8>,
}

impl Response {
    pub fn json(status: u16, value: &Value) -> Self {
        Response { status, content_type: "application/json".to_owned(), body: value.to_string().into_bytes() }
    }

    /// An error in OpenAI's format.
    pub fn error(status: u16, message: &str) -> Self {
        Response::json(status, &json!({ "error": { "message": message, "type": "palimpsest" } }))
    }
}

/// Called from several threads at once.
pub type Handler = Arc<dyn Fn(Request) -> Response + Send + Sync>;

/// Stops when dropped.
pub struct HttpServer {
    address: SocketAddr,
    #[cfg(feature = "serve")]
    _running: running::Running,
}

impl HttpServer {
    /// Listens on a free loopback port.
    #[cfg(feature = "serve")]
    pub fn start(handler: Handler) -> std::io::Result<Self> {
        let (address, _running) = running::start(handler)?;
        Ok(HttpServer { address, _running })
    }

    #[cfg(not(feature = "serve"))]
    pub fn start(_: Handler) -> std::io::Result<Self> {
        Err(std::io::Error::other("this build has no HTTP server; build it with the feature serve"))
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

#[cfg(feature = "serve")]
mod running {
    use std::net::{Ipv4Addr, SocketAddr, TcpListener};
    use std::sync::Arc;
    use std::thread::{Builder, JoinHandle};

    use axum::Router;
    use axum::body::{Body, to_bytes};
    use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
    use tokio::runtime;
    use tokio::sync::oneshot;
    use tokio::task::spawn_blocking;

    use super::{Handler, Request, Response};

    const LONGEST_BODY: usize = 256 << 20;

    pub(super) struct Running {
        stop: Option<oneshot::Sender<()>>,
        thread: Option<JoinHandle<()>>,
    }

    impl Drop for Running {
        /// Closes the port and connections without waiting for pending responses.
        fn drop(&mut self) {
            drop(self.stop.take());
            if let Some(thread) = self.thread.take() {
                let _ = thread.join();
            }
        }
    }

    pub(super) fn start(handler: Handler) -> std::io::Result<(SocketAddr, Running)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let serve = async move {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let answers = move |request: axum::extract::Request| answer(Arc::clone(&handler), request);
            let app = Router::new().fallback(answers);
            tokio::select! {
                served = axum::serve(listener, app).into_future() => served,
                _ = stopped => Ok(()),
            }
        };
        let thread = Builder::new().name("memory-http".to_owned()).spawn(move || {
            if let Err(error) = runtime.block_on(serve) {
                tracing::error!("the server before the models of a memory system has ended: {error}");
            }
            runtime.shutdown_background();
        })?;
        Ok((address, Running { stop: Some(stop), thread: Some(thread) }))
    }

    async fn answer(handler: Handler, request: axum::extract::Request) -> axum::response::Response {
        let (head, body) = request.into_parts();
        let authorization = head.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let mut request = Request {
            method: head.method.to_string(),
            path: head.uri.path().to_owned(),
            authorization: authorization.map(str::to_owned),
            body: Vec::new(),
        };
        let answered = match to_bytes(body, LONGEST_BODY).await {
            Ok(body) => {
                request.body = body.into();
                spawn_blocking(move || handler(request)).await.map_err(|error| error.to_string())
            }
            Err(_) => {
                Ok(Response::error(400, &format!("the body is longer than {} MiB", LONGEST_BODY >> 20)))
            }
        };
        let Response { status, content_type, body } =
            answered.unwrap_or_else(|error| Response::error(500, &error));
        let built = axum::response::Response::builder().status(status).header(CONTENT_TYPE, content_type);
        built.body(Body::from(body)).unwrap_or_default()
    }
}
