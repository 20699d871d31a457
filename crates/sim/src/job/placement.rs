//! Which hosts a job gets.

use anyhow::ensure;
use fanin_link::Random;
use serde::Deserialize;

/// How a job's hosts are chosen.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(untagged, expecting = "\"packed\", \"shared\", \"random\", or hosts by number as [0, 1]")]
pub enum Placement {
    /// By rank.
    Hosts(Vec<u16>),
    /// By a rule.
    Rule(Rule),
}

/// Rules by name.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// The next hosts in a row that no packed job has: as close as possible (PANAMA §7).
    Packed,
    /// The next hosts in a row, after the last one the first again: as close as possible, and jobs share hosts once all have one.
    Shared,
    /// Drawn by lot from all hosts; jobs may share hosts.
    Random,
}

/// Gives hosts to one job after another.
#[derive(Debug)]
pub struct Placer {
    host_count: u32,
    /// Packed jobs have all before.
    next: u32,
    /// Jobs that share begin here.
    next_shared: u32,
    /// Servers have all from here on.
    end: u32,
}

impl Placer {
    /// Of so many hosts.
    pub fn new(host_count: u32) -> Placer {
        Placer { host_count, next: 0, next_shared: 0, end: host_count }
    }

    /// A host for a job's server: the last one that has none, so that other jobs stay where they are.
    ///
    /// # Errors
    /// If none is left.
    pub fn server(&mut self, hosts: &[u16]) -> anyhow::Result<u16> {
        loop {
            ensure!(self.end > self.next, "no host is left for a server: take fewer or smaller jobs, or name one");
            self.end -= 1;
            let host = self.end as u16;
            if !hosts.contains(&host) {
                return Ok(host);
            }
        }
    }

    /// A job's hosts, by rank.
    ///
    /// # Errors
    /// If there are not enough, one does not exist, or one is named twice.
    pub fn place(&mut self, placement: &Placement, workers: u32, random: &mut Random) -> anyhow::Result<Vec<u16>> {
        match placement {
            Placement::Hosts(hosts) => {
                ensure!(hosts.len() == workers as usize, "{} hosts for {workers} workers", hosts.len());
                for (rank, &host) in hosts.iter().enumerate() {
                    ensure!(u32::from(host) < self.host_count, "host {host}: hosts are 0 to {}", self.host_count - 1);
                    ensure!(!hosts[..rank].contains(&host), "host {host} is named twice: a job has one rank at a host");
                }
                Ok(hosts.clone())
            }
            Placement::Rule(Rule::Packed) => {
                let left = self.end - self.next;
                ensure!(
                    workers <= left,
                    "{workers} workers, and {left} hosts are left: take fewer or smaller jobs, a larger topology, or \
                     placement = \"random\", which lets jobs share hosts"
                );
                self.next += workers;
                Ok((self.next - workers..self.next).map(|host| host as u16).collect())
            }
            Placement::Rule(Rule::Shared) => {
                ensure!(workers <= self.host_count, "{workers} workers on {} hosts", self.host_count);
                let first = self.next_shared;
                self.next_shared = (first + workers) % self.host_count;
                Ok((0..workers).map(|rank| ((first + rank) % self.host_count) as u16).collect())
            }
            Placement::Rule(Rule::Random) => {
                ensure!(workers <= self.host_count, "{workers} workers on {} hosts", self.host_count);
                let mut hosts: Vec<u16> = (0..self.host_count).map(|host| host as u16).collect();
                for place in 0..workers as usize {
                    let other = place + random.below((hosts.len() - place) as u64) as usize;
                    hosts.swap(place, other);
                }
                hosts.truncate(workers as usize);
                Ok(hosts)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_that_share_begin_again_at_the_first_host() {
        let mut placer = Placer::new(5);
        let mut place = |workers| placer.place(&Placement::Rule(Rule::Shared), workers, &mut Random::new(1));
        assert_eq!(place(3).unwrap(), [0, 1, 2]);
        assert_eq!(place(3).unwrap(), [3, 4, 0]);
        assert_eq!(place(5).unwrap(), [1, 2, 3, 4, 0]);
        assert!(place(6).unwrap_err().to_string().contains("6 workers on 5 hosts"));
    }
}
