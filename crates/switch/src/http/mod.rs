//! The HTTP face: dashboard, metrics, status, health.

mod metrics;
mod view;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{Html, IntoResponse, Json, Response};
use axum::routing::get;
use fanin_control::proto::StatusResponse;

use crate::controller::Core;

/// One file without outside resources: it must work on a cluster without internet.
const DASHBOARD: &str = include_str!("dashboard.html");
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The page may run its own script and talk to its own switch, nothing else.
const CONTENT_POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
                              connect-src 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'";

/// All routes.
pub(crate) fn router(core: Arc<Core>) -> Router {
    Router::new()
        .route("/", get(dashboard))
        .route("/api/status", get(status))
        .route("/metrics", get(metrics))
        .route("/healthz", get(health))
        .with_state(core)
}

async fn dashboard() -> impl IntoResponse {
    let policy = HeaderName::from_static("content-security-policy");
    ([(policy, CONTENT_POLICY), (header::CACHE_CONTROL, "no-store")], Html(DASHBOARD))
}

async fn status(State(core): State<Arc<Core>>) -> Response {
    match read_status(core).await {
        Ok(status) => ([(header::CACHE_CONTROL, "no-store")], Json(view::SwitchView::from(status))).into_response(),
        Err(failure) => failure,
    }
}

async fn metrics(State(core): State<Arc<Core>>) -> Response {
    let status = match read_status(core).await {
        Ok(status) => status,
        Err(failure) => return failure,
    };
    match metrics::encode(status) {
        Ok(text) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// 503 while draining, so that a load balancer or a job scheduler sends new jobs elsewhere.
async fn health(State(core): State<Arc<Core>>) -> (StatusCode, &'static str) {
    if core.is_draining() { (StatusCode::SERVICE_UNAVAILABLE, "draining\n") } else { (StatusCode::OK, "ok\n") }
}

async fn read_status(core: Arc<Core>) -> Result<StatusResponse, Response> {
    let read = tokio::task::spawn_blocking(move || core.status()).await;
    read.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response())
}
