//! Runs CPU-bound work off the connection thread.

use super::error::ApiError;

pub async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(panicked()))
}

/// The panic handler has already printed the panic.
pub fn panicked() -> ApiError {
    ApiError::internal("This is a bug: the request made the server panic; others are served on")
}
