//! Paths, bodies and the frame around every request.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderValue, Method, Response, StatusCode};
use axum::middleware::{self, Next};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use futures_util::FutureExt;
use serde_json::{Value, json};

use super::answers::Run;
use super::app::App;
use super::error::ApiError;
use super::{chat, completions, tokens};

/// Most bytes of a request: more than the text of any context.
pub const LONGEST_BODY: usize = 32 << 20;

/// How long a client may take to send one.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

type Reply = Result<Response<Body>, ApiError>;

/// All paths.
pub fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .route("/v1/models", get(models))
        .route("/v1/models/{*model}", get(model))
        .route("/v1/chat/completions", post(chat_completions))
        .route("/v1/completions", post(text_completions))
        .route("/v1/embeddings", post(embeddings))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/tokenizer_info", get(tokenizer_info))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(Arc::clone(&app), framed))
        .with_state(app)
}

/// The path as it is counted: what clients make up is one.
fn known(path: &str) -> &'static str {
    const PATHS: [&str; 9] = [
        "/health",
        "/metrics",
        "/v1/models",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/tokenize",
        "/detokenize",
        "/tokenizer_info",
    ];
    PATHS.into_iter().find(|known| *known == path).unwrap_or("other")
}

/// Checks who asks, ends a panic with its request, and counts.
async fn framed(State(app): State<Arc<App>>, request: Request, next: Next) -> Response<Body> {
    let path = known(request.uri().path());
    let reply = match app.guard.check(request.headers(), path == "/health") {
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

async fn health() -> Reply {
    Ok(json_reply(&json!({"status": "ok"})))
}

async fn metrics(State(app): State<Arc<App>>) -> Reply {
    let mut response = Response::new(Body::from(app.metrics.text(app.under_way(), &app.engine.load())));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    Ok(response)
}

fn model_json(app: &App) -> Value {
    json!({"id": app.model.name(), "object": "model", "created": app.model.created, "owned_by": "palimpsest"})
}

async fn models(State(app): State<Arc<App>>) -> Reply {
    Ok(json_reply(&json!({"object": "list", "data": [model_json(&app)]})))
}

async fn model(State(app): State<Arc<App>>, Path(name): Path<String>) -> Reply {
    app.check_model(&name)?;
    Ok(json_reply(&model_json(&app)))
}

async fn embeddings() -> Reply {
    let message = "/v1/embeddings is not served by this version of palimpsest";
    Err(ApiError::new(StatusCode::NOT_IMPLEMENTED, Some("unsupported_endpoint"), message))
}

async fn unknown() -> Reply {
    let message = "there is nothing at this path; the paths are /v1/chat/completions, /v1/completions, /v1/models, /tokenize, \
                   /detokenize, /tokenizer_info, /health and /metrics";
    Err(ApiError::new(StatusCode::NOT_FOUND, Some("unknown_url"), message))
}

async fn wrong_method(method: Method) -> Reply {
    let allowed = if method == Method::POST { "GET" } else { "POST" };
    let message = format!("this path takes {allowed}");
    let mut response =
        ApiError::new(StatusCode::METHOD_NOT_ALLOWED, Some("wrong_method"), message).into_response();
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    Ok(response)
}
