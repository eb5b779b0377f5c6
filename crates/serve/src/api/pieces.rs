//! Serialises replies in chunks, without an intermediate JSON value or one growing string.

use std::convert::Infallible;
use std::io::{self, Write};

use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderValue, Response};
use axum::response::IntoResponse;
use futures_util::stream;
use serde::Serialize;
use serde_json::Value;

use super::attention_reply::Reply;
use super::error::ApiError;
use super::memory::Held;

const PIECE: usize = 256 << 10;

/// An entry of `choices`.
#[derive(Debug, Serialize)]
pub struct Said {
    pub index: usize,
    /// Content and `logprobs`.
    #[serde(flatten)]
    pub entry: Value,
    pub finish_reason: Option<&'static str>,
    #[serde(rename = "palimpsest", skip_serializing_if = "Option::is_none")]
    pub attention: Option<Reply>,
}

/// A response, or a frame of a stream.
#[derive(Serialize)]
pub struct Envelope<'a> {
    pub id: &'a str,
    pub object: &'static str,
    pub created: i64,
    pub model: &'a str,
    #[serde(rename = "palimpsest", skip_serializing_if = "Option::is_none")]
    pub progress: Option<Value>,
    pub choices: &'a [Said],
    /// Null if sent later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Value>,
}

#[derive(Default)]
struct Pieces {
    whole: Vec<Bytes>,
    last: Vec<u8>,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.last.len() + bytes.len() > PIECE {
            self.whole.push(std::mem::take(&mut self.last).into());
        }
        self.last.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// JSON response that holds its memory reservation.
pub fn response(body: &impl Serialize, held: Option<Held>) -> Result<Response<Body>, ApiError> {
    let mut pieces = Pieces::default();
    serde_json::to_writer(&mut pieces, body).map_err(ApiError::internal)?;
    let Pieces { mut whole, last } = pieces;
    whole.push(last.into());
    Ok(of_pieces(whole, held))
}

/// Response from chunks. Memory is released once the client has read them or disconnected.
pub fn of_pieces(whole: Vec<Bytes>, held: Option<Held>) -> Response<Body> {
    let length: usize = whole.iter().map(Bytes::len).sum();
    let told = stream::unfold((whole.into_iter(), held), |(mut pieces, held)| async move {
        Some((Ok::<Bytes, Infallible>(pieces.next()?), (pieces, held)))
    });
    let json = HeaderValue::from_static("application/json");
    let headers = [(CONTENT_TYPE, json), (CONTENT_LENGTH, HeaderValue::from(length))];
    (headers, Body::from_stream(told)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_what_one_string_would_be() {
        let mut pieces = Pieces::default();
        let value: Vec<u64> = (0..200_000).collect();
        assert!(serde_json::to_writer(&mut pieces, &value).is_ok());
        assert!(pieces.whole.len() > 2 && pieces.whole.iter().all(|piece| piece.len() <= PIECE));
        let joined: Vec<u8> = pieces.whole.iter().flat_map(|b| b.to_vec()).chain(pieces.last).collect();
        assert_eq!(Some(joined), serde_json::to_vec(&value).ok());
    }
}
