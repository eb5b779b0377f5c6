//! Routes and the middleware around every request.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::header::{ALLOW, CONTENT_TYPE};
use axum::http::{HeaderValue, Method, Response, StatusCode, Uri};
use axum::middleware::{self, Next};
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, get, post};
use axum::{Extension, Router};
use futures_util::FutureExt;
use serde_json::{Value, json};

use super::answers::{PreparedCompletion, Run, Shape};
use super::app::App;
use super::body::receive;
use super::error::{ApiError, ErrorCode};
use super::guard::Guard;
use super::listen::{self, Connection};
use super::log::{Client, Line, REQUEST_ID};
use super::off_thread::{off_thread, panicked};
use super::{chat, completions, embeddings, openapi, page, pieces, tokens};

type Reply = Result<Response<Body>, ApiError>;

type Route = fn() -> MethodRouter<Arc<App>>;

/// [`POSTED`] paths take POST, the others GET.
pub const PATHS: [(&str, Route); 14] = [
    ("/", || get(async || page::page())),
    ("/health", || get(async || json_reply(&json!({"status": "ok"})))),
    ("/ready", || get(ready)),
    ("/metrics", || get(metrics)),
    ("/openapi.json", || get(openapi)),
    ("/v1/models", || get(models)),
    ("/v1/models/{*model}", || get(model)),
    ("/v1/chat/completions", || post(|app, line, body| answers(app, line, body, chat::prepare))),
    ("/v1/completions", || post(|app, line, body| answers(app, line, body, completions::prepare))),
    ("/v1/embeddings", || post(embeddings)),
    ("/tokenize", || post(tokenize)),
    ("/detokenize", || post(detokenize)),
    ("/tokenizer_info", || get(tokenizer_info)),
    ("/tokenizer.json", || get(tokenizer_file)),
];

pub fn router(app: Arc<App>) -> Router {
    PATHS
        .into_iter()
        .fold(Router::new(), |router, (path, handler)| router.route(path, handler()))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(Arc::clone(&app), framed))
        .with_state(app)
}

/// Path label for metrics; unknown paths count as one.
fn known(path: &str) -> &'static str {
    PATHS.into_iter().map(|(known, _)| known).find(|known| *known == path).unwrap_or("other")
}

/// Middleware: access check, panic handling, request id, metrics, log.
async fn framed(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response<Body> {
    let path = known(request.uri().path());
    let origin = app.guard.allowed_origin(request.headers());
    let (client, at_once) = admitted(&app, &request, path);
    let (format, slow) = (app.options.log, app.options.slow);
    let line = Arc::new(Line::new(format, slow, &app.metrics, client, request.headers(), path));
    let mut reply = match at_once {
        Some(reply) => reply,
        None => {
            request.extensions_mut().insert(Arc::clone(&line));
            let served = AssertUnwindSafe(next.run(request)).catch_unwind().await;
            served.unwrap_or_else(|_| panicked().into_response())
        }
    };
    let code = reply.extensions().get().and_then(|ErrorCode(code)| *code);
    line.record.reply(reply.status(), code);
    let counted = (path, reply.status().as_u16());
    app.metrics.with(|counts| {
        *counts.requests.entry(counted).or_default() += 1;
        if let Some(key) = &line.record.key {
            *counts.by_key.entry(key.name.clone()).or_default() += 1;
        }
    });
    if let Ok(id) = HeaderValue::from_str(&line.record.id) {
        reply.headers_mut().insert(REQUEST_ID, id);
    }
    if let Some(origin) = origin {
        Guard::share(origin, &mut reply);
    }
    reply
}

/// The client, and the reply to a request that goes no further: a preflight, or one that is refused. Requests with work for the server count
/// for the limits of their key.
fn admitted(app: &App, request: &Request, path: &str) -> (Client, Option<Response<Body>>) {
    let peer = request.extensions().get::<Arc<Connection>>().map(|connection| connection.peer.to_string());
    let mut client = Client { peer, ..Client::default() };
    let mut admit = || {
        listen::well_formed(request)?;
        if let Some(reply) = app.guard.preflight(request) {
            return Ok(Some(reply));
        }
        let open = ["/", "/health", "/ready"].contains(&path);
        client.key = app.guard.check(request.headers(), open)?;
        if !open {
            listen::admit(request)?;
        }
        let works = request.method() == Method::POST && POSTED.contains(&path);
        if let Some(key) = client.key.as_deref().filter(|_| works) {
            client.place = app.admit_key(key)?;
        }
        Ok(None)
    };
    let reply = admit().unwrap_or_else(|error: ApiError| Some(error.into_response()));
    (client, reply)
}

fn json_reply(body: &Value) -> Response<Body> {
    ([(CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

type Logged = Extension<Arc<Line>>;

async fn answers<S: Shape>(
    State(app): State<Arc<App>>,
    Extension(line): Logged,
    request: Request,
    prepare: fn(&Arc<App>, Value) -> Result<PreparedCompletion<S>, ApiError>,
) -> Reply {
    let body = receive(&app, request).await?;
    let (place, begun) = (app.admit()?, Instant::now());
    line.record.noted().model = Some(app.model.name().to_owned());
    let job = body.prepared(&app, prepare).await?;
    Run::new(app, job, place, begun, line).response().await
}

async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Reply {
    let body = receive(&app, request).await?;
    let (tokens, held) = body.prepared(&app, tokens::tokenize).await?;
    pieces::response(&tokens, Some(held))
}

async fn detokenize(State(app): State<Arc<App>>, request: Request) -> Reply {
    let body = receive(&app, request).await?;
    Ok(json_reply(&body.prepared(&app, tokens::detokenize).await?))
}

async fn tokenizer_info(State(app): State<Arc<App>>) -> Response<Body> {
    json_reply(&tokens::info(&app))
}

async fn tokenizer_file(State(app): State<Arc<App>>) -> Reply {
    off_thread(move || {
        let (file, held) = tokens::file(&app)?;
        Ok(pieces::of_pieces(vec![file.into()], Some(held)))
    })
    .await
}

async fn openapi(State(app): State<Arc<App>>) -> Reply {
    let file = match app.description.get() {
        Some(file) => file.clone(),
        None => {
            let made = openapi::openapi(&app)?.to_string().into();
            app.description.get_or_init(|| made).clone()
        }
    };
    Ok(([(CONTENT_TYPE, "application/json")], file).into_response())
}

/// Unlike `/health`, which tells that the process answers: whether new requests are taken. Until the model is loaded nothing is answered.
async fn ready(State(app): State<Arc<App>>) -> Reply {
    match app.closing.load(Ordering::Relaxed) {
        true => Err(ApiError::closing()),
        false => Ok(json_reply(&json!({"status": "ready"}))),
    }
}

async fn metrics(State(app): State<Arc<App>>) -> Reply {
    let text =
        app.metrics.text(app.model.name(), app.under_way(), &app.engine.thread.load(), &app.resident());
    Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response())
}

async fn models(State(app): State<Arc<App>>) -> Response<Body> {
    let models = [app.model.json(), app.embedder.json(app.model.created)];
    json_reply(&json!({"object": "list", "data": models}))
}

async fn model(State(app): State<Arc<App>>, Path(name): Path<String>) -> Reply {
    if name == app.embedder.name() {
        return Ok(json_reply(&app.embedder.json(app.model.created)));
    }
    app.check_model(&name)?;
    Ok(json_reply(&app.model.json()))
}

async fn embeddings(State(app): State<Arc<App>>, Extension(line): Logged, request: Request) -> Reply {
    let body = receive(&app, request).await?;
    if body.model() == Some(app.embedder.name()) {
        // May be fetched, which takes no place in the queue.
        let own = Arc::clone(&app);
        off_thread(move || Ok(own.embedder.open().map(drop)?)).await?;
    }
    // Held until the embeddings are computed.
    let _place = app.admit()?;
    let job = body.prepared(&app, embeddings::prepare).await?;
    job.note(&line.record);
    let own = Arc::clone(&app);
    // Dropped with this future when the client disconnects.
    let waiter = Arc::new(());
    let waits = Arc::downgrade(&waiter);
    off_thread(move || job.response(&own, &waits)).await
}

async fn unknown() -> Reply {
    let message = "there is nothing at this path; the paths are /, /v1/chat/completions, /v1/completions, /v1/embeddings, /v1/models, \
                   /tokenize, /detokenize, /tokenizer_info, /tokenizer.json, /openapi.json, /health, /ready and /metrics";
    Err(ApiError::new(StatusCode::NOT_FOUND, Some("unknown_url"), message))
}

const POSTED: [&str; 5] =
    ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize", "/detokenize"];

async fn wrong_method(uri: Uri) -> Reply {
    let allowed = if POSTED.contains(&uri.path()) { "POST" } else { "GET, HEAD" };
    let message = format!("this path takes {allowed}");
    let error = ApiError::new(StatusCode::METHOD_NOT_ALLOWED, Some("wrong_method"), message);
    Ok(([(ALLOW, allowed)], error).into_response())
}
