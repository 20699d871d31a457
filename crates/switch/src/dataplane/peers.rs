//! Where each worker's datagrams come from, and so where its Aggregates go.

use std::collections::HashMap;
use std::net::SocketAddr;

use fanin_protocol::switchml::Admitted;

use crate::dataplane_api::JobInstall;

const JOB_COUNT_MAX: usize = 256;

/// Addresses of one job's workers, lane by lane.
struct JobPeers {
    world_size: usize,
    /// `lane * world_size + rank`.
    addresses: Vec<Option<SocketAddr>>,
    /// In the same order: who takes Aggregates from the lane's group.
    in_group: Vec<bool>,
    /// Multicast groups by lane.
    groups: Vec<SocketAddr>,
    has_checksum: bool,
}

/// Addresses learned by one data-plane thread.
pub(super) struct Peers {
    /// This thread's port, which is its groups' too.
    port: u16,
    jobs: Vec<Option<JobPeers>>,
    /// p4app-switchML workers, which do not say who they are.
    registered: HashMap<SocketAddr, Admitted>,
}

impl Peers {
    pub fn new(port: u16) -> Peers {
        let mut jobs = Vec::new();
        jobs.resize_with(JOB_COUNT_MAX, || None);
        Peers { port, jobs, registered: HashMap::new() }
    }

    pub fn install(&mut self, job: &JobInstall) {
        // ATP's packets tell which child of this switch they come from.
        let world_size = job.atp.as_ref().map_or(usize::from(job.world_size), |part| part.children.len());
        let addresses = vec![None; world_size * usize::from(job.lane_count)];
        let in_group = vec![false; addresses.len()];
        let group = |lane| (fanin_wire::multicast_group(job.job_token, lane), self.port).into();
        let groups = (0..job.lane_count).map(group).collect();
        let has_checksum = job.has_checksum;
        let peers = JobPeers { world_size, addresses, in_group, groups, has_checksum };
        self.jobs[(job.job_id & 0xff) as usize] = Some(peers);
    }

    pub fn remove(&mut self, job_number: u8) {
        self.jobs[usize::from(job_number)] = None;
        self.registered.retain(|_, sender| sender.job_number != job_number);
    }

    /// Remembers where an admitted packet came from. A worker that moved to
    /// another port is answered there.
    pub fn learn(&mut self, sender: Admitted, source: SocketAddr) {
        let Some(job) = self.jobs[usize::from(sender.job_number)].as_mut() else { return };
        // A child that the job does not have must not stand in another lane's place.
        if usize::from(sender.rank) >= job.world_size {
            return;
        }
        let place = usize::from(sender.lane) * job.world_size + usize::from(sender.rank);
        if let Some(address) = job.addresses.get_mut(place)
            && *address != Some(source)
        {
            *address = Some(source);
            // A restarted worker has to test its group again.
            job.in_group[place] = false;
        }
    }

    /// The multicast group of a job's lane.
    pub fn multicast_group(&self, job_number: u8, lane: u16) -> Option<SocketAddr> {
        self.jobs[usize::from(job_number)].as_ref()?.groups.get(usize::from(lane)).copied()
    }

    /// A worker has seen that what is sent to its lane's group reaches it.
    pub fn join_group(&mut self, member: Admitted) {
        let Some(job) = self.jobs[usize::from(member.job_number)].as_mut() else { return };
        let place = usize::from(member.lane) * job.world_size + usize::from(member.rank);
        if let Some(in_group) = job.in_group.get_mut(place) {
            *in_group = true;
        }
    }

    /// The network does not take what is sent to this group any more: its
    /// members get their own copies from now on.
    pub fn dissolve_group(&mut self, job_number: u8, lane: u16) {
        if let Some(job) = self.jobs[usize::from(job_number)].as_mut() {
            let first = usize::from(lane) * job.world_size;
            job.in_group[first..first + job.world_size].fill(false);
        }
    }

    /// Where an Aggregate for all of a lane's workers must be sent: to its
    /// group if that spares a copy, and to every worker outside it.
    pub fn destinations(&self, job_number: u8, lane: u16) -> impl Iterator<Item = SocketAddr> + '_ {
        let first = move |job: &JobPeers| usize::from(lane) * job.world_size;
        let job = self.jobs[usize::from(job_number)].as_ref().filter(|job| first(job) < job.addresses.len());
        let members = |job: &JobPeers| job.in_group[first(job)..][..job.world_size].iter().filter(|&&is| is).count();
        let uses_group = job.is_some_and(|job| members(job) > 1);
        let group = job.filter(|_| uses_group).and_then(|job| job.groups.get(usize::from(lane)).copied());
        let alone = job.into_iter().flat_map(move |job| {
            let places = first(job)..first(job) + job.world_size;
            places.filter(move |&place| !(uses_group && job.in_group[place])).filter_map(|place| job.addresses[place])
        });
        group.into_iter().chain(alone)
    }

    pub fn register(&mut self, sender: Admitted, address: SocketAddr) {
        self.registered.insert(address, sender);
        self.learn(sender, address);
    }

    /// Rank of a p4app-switchML worker, by its address.
    pub fn registered_rank(&self, source: SocketAddr) -> Option<u16> {
        self.registered.get(&source).map(|sender| sender.rank)
    }

    /// Whether a job's datagrams carry a checksum.
    pub fn has_checksum(&self, job_number: u8) -> bool {
        self.jobs[usize::from(job_number)].as_ref().is_none_or(|job| job.has_checksum)
    }

    /// Addresses of a job's workers on one lane, by rank.
    pub fn group(&self, job_number: u8, lane: u16) -> &[Option<SocketAddr>] {
        match &self.jobs[usize::from(job_number)] {
            None => &[],
            Some(job) => {
                let first = usize::from(lane) * job.world_size;
                job.addresses.get(first..first + job.world_size).unwrap_or(&[])
            }
        }
    }

    /// A worker's latest address on any lane.
    pub fn address(&self, job_number: u8, rank: u16) -> Option<SocketAddr> {
        let job = self.jobs[usize::from(job_number)].as_ref()?;
        job.addresses.iter().skip(usize::from(rank)).step_by(job.world_size).flatten().next().copied()
    }
}
