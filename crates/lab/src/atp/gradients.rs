//! One job that sums given gradients again and again.

use std::sync::Arc;

use fanin_protocol::atp::Scale;
use fanin_protocol::time::{Span, Time};

use super::cluster::{BLOCK_ELEMENTS, Cluster, one_switch};
use crate::world::{Contents, JobSpec, Protocol, Topology, Workload};

/// A run.
pub(super) struct Run<'a> {
    pub cluster: &'a Cluster,
    pub slots: u16,
    pub seed: u64,
    /// How often the tensor is summed, at least twice.
    pub rounds: u32,
    pub scale: Scale,
    /// By worker, elements of its tensor, a whole number of blocks.
    pub gradients: Arc<Vec<Vec<f32>>>,
}

/// What it came to.
pub(super) struct Measured {
    /// Gbit/s of sums at a worker.
    pub gbps: f64,
    /// Chunks that came as floats.
    pub float_blocks: u64,
    /// Chunks that came at another scale than 10^8.
    pub scaled_blocks: u64,
    /// Largest error of a sum, as a share of its block's largest number.
    pub error_max: f64,
    /// Packet arrivals.
    pub hops: u64,
}

impl Run<'_> {
    /// Runs it to its end; every sum is checked.
    pub fn measure(&self) -> anyhow::Result<Measured> {
        let server = self.gradients.len();
        let mut world = self.cluster.world(Topology::one_switch(server + 1), self.slots, self.seed);
        let workload = Workload::Training {
            model_chunks: (self.gradients[0].len() / usize::from(BLOCK_ELEMENTS)) as u32,
            compute: Span::ZERO,
            jitter_ppm: 0,
            rounds: self.rounds,
        };
        let tree = one_switch(server as u16)?;
        let mut job = self.cluster.atp_job(tree, (0..server).collect(), server, workload);
        if let Protocol::Atp { scale, .. } = &mut job.protocol {
            *scale = self.scale;
        }
        world.add_job(JobSpec { contents: Contents::Gradients(self.gradients.clone()), ..job })?;
        world.run_to_the_end(Time::ZERO + Span::from_ms(600_000))?;
        let round = world.progress(0)[0].round_ns(0).ok_or_else(|| anyhow::anyhow!("`rounds` must be 2 or more"))?;
        Ok(Measured {
            gbps: world.taken_bytes(0) * 8.0 / f64::from(self.rounds) / round,
            float_blocks: world.float_blocks(0),
            scaled_blocks: world.scaled_blocks(0),
            error_max: world.error_max(0),
            hops: world.hops(),
        })
    }
}
