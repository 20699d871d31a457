//! `Attach`: one worker's reports in, its job's notices out.

use std::sync::Arc;
use std::time::Duration;

use fanin_control::proto::{Attached, Notice, Report, notice};
use fanin_control::{ControlError, ErrorCode};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Status, Streaming};

use super::Core;
use super::core::Outgoing;

/// A client that opens a stream and says nothing holds resources for no one.
const FIRST_REPORT_WAIT: Duration = Duration::from_secs(10);

pub(super) type NoticeStream = UnboundedReceiverStream<Result<Notice, Status>>;

pub(super) async fn attach(core: &Arc<Core>, mut reports: Streaming<Report>) -> Result<NoticeStream, Status> {
    let first = timeout(FIRST_REPORT_WAIT, reports.message()).await.map_err(|_| no_report())??;
    let first = first.ok_or_else(no_report)?;
    let (job_id, rank, stream_id) = (first.job_id, first.rank as u16, core.stream_id());
    let (notices, outgoing) = mpsc::unbounded_channel();
    let (reader_stop, stopped) = oneshot::channel();
    core.with(|state, now_ms| {
        let lease_ms = state.registry.attach(now_ms, &first, stream_id)?;
        state.registry.report(now_ms, first, stream_id)?;
        let attached = notice::Kind::Attached(Attached { lease_ms });
        let _ = notices.send(Ok(Notice { kind: Some(attached) }));
        // Replacing an older stream of this rank ends it.
        state.streams.insert((job_id, rank), Outgoing { stream_id, notices, _reader_stop: reader_stop });
        Ok::<_, ControlError>(())
    })?;
    tokio::spawn(read_reports(core.clone(), reports, (job_id, rank, stream_id), stopped));
    Ok(UnboundedReceiverStream::new(outgoing))
}

async fn read_reports(
    core: Arc<Core>,
    mut reports: Streaming<Report>,
    (job_id, rank, stream_id): (u32, u16, u64),
    mut stopped: oneshot::Receiver<()>,
) {
    loop {
        let report = tokio::select! {
            _ = &mut stopped => return,
            report = reports.message() => report,
        };
        let Ok(Some(report)) = report else { break };
        if let Err(error) = core.with(|state, now_ms| state.registry.report(now_ms, report, stream_id)) {
            return refuse(&core, (job_id, rank, stream_id), error);
        }
    }
    core.with(|state, now_ms| {
        state.registry.stream_closed(now_ms, job_id, rank, stream_id);
        state.take_stream(job_id, rank, stream_id);
    });
}

/// Ends the stream with the reason.
fn refuse(core: &Core, (job_id, rank, stream_id): (u32, u16, u64), error: ControlError) {
    tracing::warn!(job_id, rank, %error, "report refused");
    core.with(|state, _| {
        if let Some(stream) = state.take_stream(job_id, rank, stream_id) {
            let _ = stream.notices.send(Err(error.into()));
        }
    });
}

fn no_report() -> Status {
    ControlError::new(
        ErrorCode::InvalidRequest,
        "the stream began without a report",
        "Send a Report with job_id, job_token and rank first",
    )
    .into()
}
