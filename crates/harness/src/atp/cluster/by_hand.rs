//! A cluster whose packets somebody else carries.

use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;

use fanin_protocol::atp::{Context, Verdict};
use fanin_protocol::time::Span;

use super::{Cluster, DATAGRAM_BYTES_MAX, Event, Node, Scenario};

/// A packet under way that somebody else carries.
#[derive(Clone, Debug)]
pub(in crate::atp) struct Sent {
    pub from: Node,
    pub to: Node,
    pub packet: Vec<u8>,
    pub is_damaged: bool,
}

impl Cluster {
    /// A cluster whose packets the caller carries, step by step.
    pub(in crate::atp) fn by_hand(scenario: Scenario) -> Cluster {
        let mut cluster = Cluster::new(scenario, false);
        cluster.by_hand = Some(Vec::new());
        cluster.events.clear();
        cluster
    }

    pub(in crate::atp) fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    pub(in crate::atp) fn wait(&mut self, span: Span) {
        self.now += span;
    }

    pub(in crate::atp) fn endpoint_count(&self) -> usize {
        self.endpoints.len()
    }

    /// What was sent since the last call.
    pub(in crate::atp) fn take_sent(&mut self) -> Vec<Sent> {
        self.by_hand.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// A lane's timer runs out, now or when it is due.
    pub(in crate::atp) fn time_out(&mut self, worker: usize) -> Result<(), String> {
        if let Some(due) = self.endpoints[worker].worker.poll_timeout() {
            self.now = self.now.max(due);
        }
        self.step(Event::Wake { worker })
    }

    /// Hands a stranger's packet to a switch or a server, which must not heed it.
    pub(in crate::atp) fn take_forged(&mut self, to: Node, packet: &[u8]) -> Result<(), String> {
        let context = Context { now: self.now, egress_queue_bytes: 0 };
        match to {
            Node::Worker(_) => Ok(()),
            Node::Switch(number) => {
                let switch = &mut self.switches[number].program;
                let before = hash_of(|hasher| switch.hash_state(hasher));
                let mut output = [0; DATAGRAM_BYTES_MAX];
                let verdict = switch.process(&context, packet, &mut output);
                let is_same = hash_of(|hasher| switch.hash_state(hasher)) == before;
                self.switches[number].received += 1;
                match verdict {
                    Verdict::Drop(_) | Verdict::Refuse { .. } if is_same => Ok(()),
                    _ => Err(format!("a forged packet had an effect at a switch, {verdict:?}")),
                }
            }
            Node::Server(number) => {
                let server = &mut self.servers[number];
                let before = hash_of(|hasher| server.hash_state(hasher));
                let drops: u64 = server.counters().drops.iter().sum();
                server.handle_packet(self.now, packet);
                let mut output = [0; DATAGRAM_BYTES_MAX];
                // A Refusal at most, which nobody waits for.
                while server.poll_transmit(&mut output).is_some() {}
                let is_same = hash_of(|hasher| server.hash_state(hasher)) == before;
                let is_dropped = server.counters().drops.iter().sum::<u64>() == drops + 1;
                if is_same && is_dropped { Ok(()) } else { Err("a forged packet had an effect at a server".into()) }
            }
        }
    }
}

fn hash_of(feed: impl FnOnce(&mut DefaultHasher)) -> u64 {
    let mut hasher = DefaultHasher::new();
    feed(&mut hasher);
    hasher.finish()
}
