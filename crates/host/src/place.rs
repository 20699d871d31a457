//! Where a rank stands among the ranks of its host, and its host among the hosts.

use std::os::unix::fs::MetadataExt;

use fanin_control::client::Admission;

use crate::config::SessionConfig;

/// One rank's place. Without grouping every rank is a host of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Position among the ranks of this host, in rank order; 0 contributes to the switch for all of them.
    pub local_rank: u16,
    /// Ranks of this host.
    pub local_size: u16,
    /// This host's number, which is the rank in datagrams.
    pub host: u16,
    /// Hosts that meet at the switch.
    pub host_count: u16,
}

impl Place {
    /// The place that the controller gave, the same view on every rank.
    pub fn new(admission: &Admission) -> Place {
        let (hosts, rank) = (&admission.assignment.host_of_rank, admission.rank);
        let Some(&host) = hosts.get(usize::from(rank)) else {
            let host_count = admission.assignment.shape.world_size;
            return Place { local_rank: 0, local_size: 1, host: rank, host_count };
        };
        let before = &hosts[..usize::from(rank)];
        let same = |hosts: &[u16]| hosts.iter().filter(|other| **other == host).count() as u16;
        let host_count = admission.assignment.contributor_count();
        Place { local_rank: same(before), local_size: same(hosts), host, host_count }
    }

    /// The job's ranks on this host, ascending; only where ranks are grouped.
    pub fn ranks_of_host(&self, admission: &Admission) -> Vec<u16> {
        let hosts = admission.assignment.host_of_rank.iter().enumerate();
        hosts.filter(|(_, host)| **host == self.host).map(|(rank, _)| rank as u16).collect()
    }

    /// Whether this rank talks to the switch: not where shared memory holds the whole sum. A job of one rank has nobody
    /// to share memory with, so its collectives go to the switch and back.
    pub fn contributes(&self) -> bool {
        let all_on_one_host = self.host_count == 1 && self.local_size > 1;
        self.local_rank == 0 && !all_on_one_host
    }

    /// Whether the ranks of the host meet in shared memory first.
    pub fn shares_memory(&self, admission: &Admission) -> bool {
        !admission.assignment.host_of_rank.is_empty() && (self.local_size > 1 || self.host_count > 1)
    }
}

/// What to tell the controller: `None` keeps every rank of the job to itself.
pub(crate) fn host_key(config: &SessionConfig) -> Option<String> {
    config.may_share_memory().then(|| config.host_key.clone().or_else(detected_key))?
}

/// Equal for processes that can reach each other's abstract sockets and trust each other: same boot of the same kernel,
/// same network namespace, same user. Namespaces therefore count as hosts, as in a simulated network. `None` where the
/// system does not tell.
fn detected_key() -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = std::fs::metadata("/proc/self/ns/net").ok()?.ino();
    let user = std::fs::metadata("/proc/self").ok()?.uid();
    Some(format!("{} net {namespace} user {user}", boot.trim()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fanin_control::registry::{Absences, Assignment, JobShape};
    use fanin_control::{Algorithm, WireFormat};

    use super::*;
    use crate::config::Transport;

    fn place(rank: u16, host_of_rank: &[u16]) -> Place {
        let shape = JobShape {
            world_size: 4,
            lane_count: 1,
            wire_format: WireFormat::FaninV1,
            algorithm: Algorithm::Switchml,
            accumulator: fanin_wire::Accumulator::BlockFixed,
            absences: Absences::default(),
        };
        let assignment = Assignment {
            atp: None,
            racks: None,
            resumed: None,
            has_checksum: true,
            job_id: 1,
            job_token: 2,
            shape,
            slots_per_lane: 8,
            element_count_max: 32,
            host_of_rank: host_of_rank.to_vec(),
        };
        let (data_addresses, switch_name) = (Vec::new(), String::new());
        let lease = Duration::from_secs(1);
        Place::new(&Admission { assignment, rank, membership: 1, data_addresses, switch_name, lease })
    }

    #[test]
    fn the_first_rank_of_a_host_contributes() {
        let hosts = [0, 1, 0, 1];
        assert_eq!(place(1, &hosts), Place { local_rank: 0, local_size: 2, host: 1, host_count: 2 });
        assert_eq!(place(2, &hosts), Place { local_rank: 1, local_size: 2, host: 0, host_count: 2 });
        assert!(place(1, &hosts).contributes() && !place(2, &hosts).contributes());
    }

    #[test]
    fn nobody_contributes_on_one_host_and_everybody_without_hosts() {
        assert!((0..4).all(|rank| !place(rank, &[0; 4]).contributes()));
        assert!((0..4).all(|rank| place(rank, &[]).contributes()));
    }

    #[test]
    fn a_rank_alone_contributes_with_a_host_and_without() {
        assert!(place(0, &[0]).contributes());
        let alone = Place { local_rank: 0, local_size: 1, host: 0, host_count: 1 };
        assert!(alone.contributes());
    }

    #[test]
    fn this_process_is_on_one_host_with_itself() {
        assert!(detected_key().is_some() && detected_key() == detected_key());
    }

    #[test]
    fn only_ranks_that_may_share_memory_name_their_host() {
        let named = SessionConfig { host_key: Some("a".into()), ..SessionConfig::default() };
        assert_eq!(host_key(&named).as_deref(), Some("a"));
        assert_eq!(host_key(&SessionConfig { transport: Transport::Udp, ..named.clone() }), None);
        assert_eq!(host_key(&SessionConfig { loss: Some((0.1, 7)), ..named }), None);
    }
}
