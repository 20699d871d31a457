//! How much reaches the server: ATP's two levels against racks that aggregate for themselves (ATP §5.2.2, Fig. 9).

use fanin_protocol::atp::Tree;
use fanin_protocol::time::{Span, Time};
use serde::{Deserialize, Serialize};

use super::cluster::{Cluster, one_switch};
use crate::findings::{Findings, Row, Sheet};
use crate::world::{Topology, Workload, World};

/// Fig. 9: hosts 0 and 1 at switch 0, 2 and 3 at switch 1, 4 and 5 and the server at switch 2, above the other two.
const HOSTS: [usize; 7] = [0, 0, 1, 1, 2, 2, 2];
const SERVER: usize = 6;

/// `experiments/atp/traffic.toml`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// Seed of the run.
    pub seed: u64,
    /// The network.
    pub cluster: Cluster,
    /// Slots of each switch.
    pub slots: u16,
    /// Chunks that each worker sums.
    pub chunks: u32,
}

impl Setting {
    /// Fewer chunks, for tests.
    pub fn quicken(&mut self) {
        self.chunks /= 10;
    }

    fn world(&self) -> World {
        let topology = Topology { parents: vec![Some(2), Some(2), None], hosts: HOSTS.to_vec() };
        self.cluster.world(topology, self.slots, self.seed)
    }

    /// Bytes towards the server for each chunk, and packet arrivals.
    fn measure(&self, jobs: &[(Tree, Vec<usize>)]) -> anyhow::Result<(f64, u64)> {
        let mut world = self.world();
        let workload = Workload::Training { model_chunks: self.chunks, compute: Span::ZERO, jitter_ppm: 0, rounds: 1 };
        for (tree, hosts) in jobs {
            world.add_job(self.cluster.atp_job(tree.clone(), hosts.clone(), SERVER, workload))?;
        }
        world.run_to_the_end(Time::ZERO + Span::from_ms(60_000))?;
        let [_, towards] = world.host_links(SERVER);
        Ok((towards.bytes as f64 / f64::from(self.chunks), world.hops()))
    }

    /// §5.2.2.
    ///
    /// # Errors
    /// A setting that makes no sense, or a run that fails.
    pub fn run(&self) -> anyhow::Result<Findings> {
        let tree = Tree::racks(&[2, 2], 2).map_err(|error| anyhow::anyhow!("Fig. 9 is a tree: {error:?}"))?;
        let (atp, atp_hops) = self.measure(&[(tree, (0..6).collect())])?;
        // The sum of the racks' three sums is the server's own work, and changes nothing on the wire.
        let racks: Vec<_> = [[0, 1], [2, 3], [4, 5]]
            .map(|pair| Ok((one_switch(2)?, pair.to_vec())))
            .into_iter()
            .collect::<anyhow::Result<_>>()?;
        let (racks, rack_hops) = self.measure(&racks)?;
        let ratio = racks / atp;
        let row = Row::new(
            "bytes to the server, racks alone / ATP",
            "3",
            format!("{ratio:.2}"),
            (2.7..3.3).contains(&ratio),
        )
        .because(if (2.97..3.03).contains(&ratio) {
            ""
        } else {
            "Chunks that collide while slots are found go to the server in parts; racks alone have three jobs' worth of them."
        });
        let columns = ["chunks", "ATP, bytes a chunk", "racks alone, bytes a chunk", "ratio"].map(String::from);
        let sheet = Sheet {
            name: "bytes".into(),
            columns: columns.into(),
            rows: vec![vec![self.chunks.into(), atp, racks, ratio]],
        };
        Ok(Findings {
            experiment: "traffic".into(),
            title: "Traffic to the server: two levels against racks alone (§5.2.2, Fig. 9)".into(),
            place: super::SIMULATED.into(),
            rows: vec![row],
            notes: vec!["Racks alone are three jobs of two workers with servers on one host: that host's own addition is left out.".into()],
            sheets: vec![sheet],
            plots: Vec::new(),
            hops: atp_hops + rack_hops,
        })
    }
}
