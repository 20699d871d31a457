//! `Join`: enter the registry and wait for the answer.

use std::sync::Arc;

use fanin_control::registry::{Assignment, JoinAsk, Ticket};
use fanin_control::tenants::Tenant;
use fanin_control::{ControlError, ErrorCode};
use tokio::sync::oneshot;

use super::Core;

/// Tells the registry when the caller has gone before the answer: gRPC drops the handler then.
struct Waiting<'a> {
    core: &'a Core,
    ticket: Ticket,
    answered: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.core.with(|state, now_ms| {
                state.joins.remove(&self.ticket);
                state.registry.cancel(now_ms, self.ticket);
            });
        }
    }
}

/// Waits without a bound of its own: the registry answers every ticket at its deadline.
pub(super) async fn join(
    core: &Arc<Core>,
    tenant: &Tenant,
    ask: JoinAsk,
) -> Result<(Ticket, Assignment), ControlError> {
    let (sender, answer) = oneshot::channel();
    let ticket = core.with(|state, now_ms| {
        let ticket = state.registry.join(now_ms, tenant, ask)?;
        state.joins.insert(ticket, sender);
        Ok::<_, ControlError>(ticket)
    })?;
    let mut waiting = Waiting { core, ticket, answered: false };
    let answer = answer.await;
    waiting.answered = true;
    let stopped = |_| Err(ControlError::new(ErrorCode::Internal, "the switch has stopped", "Start again"));
    answer.unwrap_or_else(stopped).map(|assignment| (ticket, assignment))
}
