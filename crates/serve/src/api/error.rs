//! Errors in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`.
//!
//! Messages name the field, its value and the accepted values. They fit one line and never quote prompts.

use std::fmt::Display;

use axum::Extension;
use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, Response, StatusCode};
use axum::response::{AppendHeaders, IntoResponse};
use serde_json::{Value, json};

use palimpsest_core::engine::RequestError;
use palimpsest_core::engine::{ConstraintError, EngineError};
use palimpsest_core::text::TextError;

#[derive(Debug, Clone, PartialEq)]
pub struct ApiError {
    pub status: StatusCode,
    pub message: String,
    pub param: Option<String>,
    pub code: Option<&'static str>,
    /// Seconds until a retry makes sense.
    pub retry_after: Option<u64>,
}

impl ApiError {
    pub fn new(status: StatusCode, code: Option<&'static str>, message: impl Into<String>) -> Self {
        ApiError { status, message: message.into(), param: None, code, retry_after: None }
    }

    pub fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        ApiError { param: Some(param.into()), ..Self::new(StatusCode::BAD_REQUEST, None, message) }
    }

    /// `reason` follows the field's name.
    pub fn at(param: impl Into<String>, reason: impl Display) -> Self {
        let param = param.into();
        let message = format!("`{param}` {reason}");
        Self::field(param, message)
    }

    pub fn wrong(param: impl Into<String>, found: impl Display, wanted: &str) -> Self {
        Self::at(param, format_args!("is {found}; give {wanted}"))
    }

    pub fn missing(param: impl Into<String>) -> Self {
        Self::at(param, "is missing; the request needs it").with_code("missing_required_parameter")
    }

    /// Unknown fields are refused: the client expects an effect.
    pub fn unknown(param: impl Into<String>) -> Self {
        let reason = "is no field that this version of palimpsest knows; leave it out";
        Self::at(param, reason).with_code("unknown_parameter")
    }

    pub fn not_yet(param: impl Into<String>) -> Self {
        let reason = "is not served by this version of palimpsest; leave it out";
        Self::at(param, reason).with_code("unsupported_parameter")
    }

    #[must_use]
    pub fn with_code(self, code: &'static str) -> Self {
        ApiError { code: Some(code), ..self }
    }

    pub fn internal(message: impl Display) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, Some("internal_error"), message.to_string())
    }

    pub fn left() -> Self {
        Self::internal("the model's thread left the request")
    }

    pub fn constraint(error: &ConstraintError, param: &str) -> Self {
        match error {
            ConstraintError::Lost { name, .. } => ApiError::field(name.clone(), error.to_string()),
            ConstraintError::Busy => {
                let (status, message) = (StatusCode::TOO_MANY_REQUESTS, format!("`{param}`: {error}"));
                Self::new(status, Some("rate_limit_exceeded"), message).retry_after(2).of(param)
            }
            ConstraintError::Refused(_) | ConstraintError::TooSlow => {
                ApiError::at(param, format_args!("cannot be enforced: {error}"))
            }
        }
    }

    pub fn closing() -> Self {
        let message = "the server is shutting down; send the request again when it is back";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, Some("shutting_down"), message).retry_after(5)
    }

    #[must_use]
    pub fn retry_after(self, seconds: u64) -> Self {
        ApiError { retry_after: Some(seconds), ..self }
    }

    #[must_use]
    pub fn of(self, param: &str) -> Self {
        ApiError { param: Some(param.to_owned()), ..self }
    }

    pub fn body(&self) -> Value {
        let kind = match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            429 => "rate_limit_error",
            400..500 => "invalid_request_error",
            _ => "server_error",
        };
        json!({"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}})
    }
}

/// [`ApiError::at`] unless `holds`.
pub fn ensure(holds: bool, param: impl Into<String>, reason: impl Display) -> Result<(), ApiError> {
    if holds { Ok(()) } else { Err(ApiError::at(param, reason)) }
}

/// Error code attached to a response, for the log.
#[derive(Debug, Clone, Copy)]
pub struct ErrorCode(pub Option<&'static str>);

impl IntoResponse for ApiError {
    fn into_response(self) -> Response<Body> {
        let body = self.body().to_string();
        let retry = self.retry_after.map(|seconds| [(RETRY_AFTER, HeaderValue::from(seconds))]);
        let json = [(CONTENT_TYPE, "application/json")];
        (self.status, json, retry.map(AppendHeaders), Extension(ErrorCode(self.code)), body).into_response()
    }
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> Self {
        let message = error.to_string();
        match error {
            RequestError::TooLong { .. } => {
                ApiError::field("messages", message).with_code("context_length_exceeded")
            }
            RequestError::Spans(_) | RequestError::Targets(_) => ApiError::field("palimpsest", message),
            RequestError::Engine(EngineError::Interrupted) => ApiError::closing(),
            RequestError::Engine(EngineError::NotFinite { .. }) => {
                ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, Some("model_not_finite"), message)
            }
            RequestError::Engine(EngineError::Constraint(error)) => {
                ApiError::constraint(&error, "response_format")
            }
            _ => ApiError::internal(message),
        }
    }
}

/// Text that the chat template or tokeniser refuses is a client error.
impl From<TextError> for ApiError {
    fn from(error: TextError) -> Self {
        ApiError::field("messages", error.to_string())
    }
}
