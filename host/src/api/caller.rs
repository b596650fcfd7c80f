//! Who asks: programs, and web pages that are this host's own. A page from elsewhere reads nothing under a
//! name that was made to lead here, and changes nothing at all.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::http::header::{HOST, ORIGIN};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::View;
use super::error::ApiError;
use crate::serve::Names;

/// Lets a request through, or says why not.
pub(super) async fn check(State(view): State<Arc<View>>, request: Request, next: Next) -> Response {
    if let Err(error) = admit(&view.names.read(), &request) {
        return error.into_response();
    }
    next.run(request).await
}

fn admit(names: &Names, request: &Request) -> Result<(), ApiError> {
    names.check(request).map_err(ApiError::misled)?;
    if !request.method().is_safe() && is_from_elsewhere(names, request.headers()) {
        return Err(ApiError::web_page());
    }
    Ok(())
}

/// Browsers say where a page is from. Only one from this very address is ours.
fn is_from_elsewhere(names: &Names, headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).map(|text| text.to_str().unwrap_or("?"));
    let host = text(HOST);
    text(ORIGIN).is_some_and(|origin| {
        let from = origin.strip_prefix("http://").filter(|from| names.knows(from));
        from.is_none() || from != host
    })
}
