//! Paths, bodies and the frame around every request.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderValue, Response, StatusCode, Uri};
use axum::middleware::{self, Next};
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, get, post};
use futures_util::FutureExt;
use serde_json::{Value, json};

use super::answers::Run;
use super::app::App;
use super::embeddings::Waits;
use super::error::ApiError;
use super::{chat, completions, embeddings, openapi, page, tokens};

/// Most bytes of a request: more than the text of any context.
pub const LONGEST_BODY: usize = 32 << 20;

/// How long a client may take to send one.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

type Reply = Result<Response<Body>, ApiError>;

/// Every path with what serves it.
pub fn routes() -> [(&'static str, MethodRouter<Arc<App>>); 12] {
    [
        ("/", get(page)),
        ("/health", get(health)),
        ("/metrics", get(metrics)),
        ("/openapi.json", get(openapi)),
        ("/v1/models", get(models)),
        ("/v1/models/{*model}", get(model)),
        ("/v1/chat/completions", post(chat_completions)),
        ("/v1/completions", post(text_completions)),
        ("/v1/embeddings", post(embeddings)),
        ("/tokenize", post(tokenize)),
        ("/detokenize", post(detokenize)),
        ("/tokenizer_info", get(tokenizer_info)),
    ]
}

/// All of them, in their frame.
pub fn router(app: Arc<App>) -> Router {
    let add = |router: Router<Arc<App>>, (path, handler)| router.route(path, handler);
    routes()
        .into_iter()
        .fold(Router::new(), add)
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(Arc::clone(&app), framed))
        .with_state(app)
}

/// Paths that are counted by themselves.
pub const PATHS: [&str; 11] = [
    "/",
    "/health",
    "/metrics",
    "/openapi.json",
    "/v1/models",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/tokenize",
    "/detokenize",
    "/tokenizer_info",
];

/// The path as it is counted: what clients make up is one.
fn known(path: &str) -> &'static str {
    PATHS.into_iter().find(|known| *known == path).unwrap_or("other")
}

/// Checks who asks, ends a panic with its request, and counts.
async fn framed(State(app): State<Arc<App>>, request: Request, next: Next) -> Response<Body> {
    let path = known(request.uri().path());
    let reply = match app.guard.check(request.headers(), ["/", "/health"].contains(&path)) {
        Err(error) => error.into_response(),
        Ok(()) => {
            let served = AssertUnwindSafe(next.run(request)).catch_unwind().await;
            served.unwrap_or_else(|_| panicked().into_response())
        }
    };
    app.metrics.request(path, reply.status().as_u16());
    reply
}

/// The panic itself has been printed.
fn panicked() -> ApiError {
    ApiError::internal("This is a bug: the request made the server panic; others are served on")
}

fn json_reply(body: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(body.to_string()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The JSON of a body, which is bounded in size and in time.
async fn read(request: Request) -> Result<Value, ApiError> {
    let too_large = || {
        let message = format!("the request's body is longer than {LONGEST_BODY} bytes; send less");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, Some("body_too_large"), message)
    };
    let length =
        request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > LONGEST_BODY as u64) {
        return Err(too_large());
    }
    let bytes = axum::body::to_bytes(request.into_body(), LONGEST_BODY);
    let bytes = match tokio::time::timeout(BODY_TIMEOUT, bytes).await {
        Err(_) => {
            let seconds = BODY_TIMEOUT.as_secs();
            let message = format!("the request's body did not come within {seconds} s");
            return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, Some("body_timeout"), message));
        }
        Ok(Err(error)) if error.to_string().contains("length limit") => return Err(too_large()),
        Ok(Err(error)) => {
            let message = format!("the request's body cannot be read: {error}");
            return Err(ApiError::new(StatusCode::BAD_REQUEST, None, message));
        }
        Ok(Ok(bytes)) => bytes,
    };
    serde_json::from_slice(&bytes).map_err(|error| {
        let message = format!("the request's body is no JSON: {error}");
        ApiError::new(StatusCode::BAD_REQUEST, Some("invalid_json"), message)
    })
}

/// Runs what takes the processor for a while off the thread that serves connections.
async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(panicked()))
}

async fn chat_completions(State(app): State<Arc<App>>, request: Request) -> Reply {
    let body = read(request).await?;
    let (place, begun) = (app.admit()?, Instant::now());
    let own = Arc::clone(&app);
    let chat::Job { orders, shape, common } = off_thread(move || chat::prepare(&own, &body)).await?;
    let run = Run::new(app, orders, place, begun);
    if common.stream { Ok(run.stream(shape, common.usage)) } else { run.whole(shape).await }
}

async fn text_completions(State(app): State<Arc<App>>, request: Request) -> Reply {
    let body = read(request).await?;
    let (place, begun) = (app.admit()?, Instant::now());
    let own = Arc::clone(&app);
    let job = off_thread(move || completions::prepare(&own, &body)).await?;
    let completions::Job { orders, shape, common } = job;
    let run = Run::new(app, orders, place, begun);
    if common.stream { Ok(run.stream(shape, common.usage)) } else { run.whole(shape).await }
}

async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Reply {
    let body = read(request).await?;
    Ok(json_reply(&off_thread(move || tokens::tokenize(&app, &body)).await?))
}

async fn detokenize(State(app): State<Arc<App>>, request: Request) -> Reply {
    let body = read(request).await?;
    Ok(json_reply(&off_thread(move || tokens::detokenize(&app, &body)).await?))
}

async fn tokenizer_info(State(app): State<Arc<App>>) -> Reply {
    Ok(json_reply(&tokens::info(&app)))
}

async fn page() -> Reply {
    page::page()
}

async fn openapi(State(app): State<Arc<App>>) -> Reply {
    Ok(json_reply(&openapi::openapi(&app)?))
}

async fn health() -> Reply {
    Ok(json_reply(&json!({"status": "ok"})))
}

async fn metrics(State(app): State<Arc<App>>) -> Reply {
    let mut response = Response::new(Body::from(app.metrics.text(app.under_way(), &app.engine.load())));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    Ok(response)
}

async fn models(State(app): State<Arc<App>>) -> Reply {
    Ok(json_reply(
        &json!({"object": "list", "data": [app.model.json(), app.embedder.json(app.model.created)]}),
    ))
}

async fn model(State(app): State<Arc<App>>, Path(name): Path<String>) -> Reply {
    if name == app.embedder.name() {
        return Ok(json_reply(&app.embedder.json(app.model.created)));
    }
    app.check_model(&name)?;
    Ok(json_reply(&app.model.json()))
}

async fn embeddings(State(app): State<Arc<App>>, request: Request) -> Reply {
    let body = read(request).await?;
    // Until the vectors are there.
    let _place = app.admit()?;
    let own = Arc::clone(&app);
    let job = off_thread(move || embeddings::prepare(&own, &body)).await?;
    let own = Arc::clone(&app);
    let waits = Waits::default();
    let gone = waits.gone();
    let reply = off_thread(move || job.reply(job.vectors(&own, &gone)?));
    Ok(json_reply(&reply.await?))
}

async fn unknown() -> Reply {
    let message = "there is nothing at this path; the paths are /, /v1/chat/completions, /v1/completions, /v1/embeddings, /v1/models, \
                   /tokenize, /detokenize, /tokenizer_info, /openapi.json, /health and /metrics";
    Err(ApiError::new(StatusCode::NOT_FOUND, Some("unknown_url"), message))
}

/// Paths that are posted to; the others are got.
pub const POSTED: [&str; 5] =
    ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize", "/detokenize"];

async fn wrong_method(uri: Uri) -> Reply {
    let allowed = if POSTED.contains(&uri.path()) { "POST" } else { "GET, HEAD" };
    let message = format!("this path takes {allowed}");
    let mut response =
        ApiError::new(StatusCode::METHOD_NOT_ALLOWED, Some("wrong_method"), message).into_response();
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    Ok(response)
}
