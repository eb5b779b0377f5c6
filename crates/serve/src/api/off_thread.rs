//! Work that takes the processor for a while, off the thread that serves connections.

use super::error::ApiError;

/// Runs `work` on a thread for blocking work.
pub async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(panicked()))
}

/// The panic itself has been printed.
pub fn panicked() -> ApiError {
    ApiError::internal("This is a bug: the request made the server panic; others are served on")
}
