//! The switch program and the server as a target: no sockets, the verdicts themselves.

use std::collections::HashMap;

use fanin_protocol::DropReason;
use fanin_protocol::atp::{
    Context, JobConfig, OVERFLOW_OFTEN, Server, ServerConfig, Switch, SwitchConfig, Tree, Verdict, without_payload,
};
use fanin_protocol::time::{Span, Time};
use fanin_wire::atp::{Header, Kind};
use fanin_wire::generated::RANK_ALL;

use super::format::{JobSpec, SwitchSpec, VerdictName};
use super::header::level_of;
use super::{Arrival, AtpTarget, Exchange, Node, Receiver};

struct Job {
    spec: JobSpec,
    /// By lane.
    servers: Vec<Server>,
}

/// Switches, made as jobs ask for them, and the servers of all jobs.
pub struct AtpProgramTarget {
    config: SwitchConfig,
    switches: HashMap<Node, Switch>,
    /// Every job that was installed, removed ones too: [`Arrival::job`] counts them all.
    jobs: Vec<Job>,
    output: Vec<u8>,
}

impl Default for AtpProgramTarget {
    fn default() -> Self {
        let config = switch_config(&SwitchSpec::default());
        AtpProgramTarget { config, switches: HashMap::new(), jobs: Vec::new(), output: vec![0; 1 << 16] }
    }
}

fn switch_config(spec: &SwitchSpec) -> SwitchConfig {
    SwitchConfig {
        slot_count: spec.slot_count,
        element_count_max: spec.element_count_max,
        slot_age_max: Span::from_ns(spec.slot_age_ns_max),
        ecn_threshold_bytes: spec.ecn_threshold_bytes,
    }
}

impl AtpTarget for AtpProgramTarget {
    fn set_up(&mut self, switches: &SwitchSpec) -> Result<(), String> {
        self.config = switch_config(switches);
        Ok(())
    }

    fn install(&mut self, spec: &JobSpec, tree: &Tree) -> Result<(), String> {
        let JobSpec { job_id, job_token, lane_count, .. } = *spec;
        let racks = (0..spec.racks.len()).map(|rack| Node::Rack(rack as u8));
        for node in racks.chain([Node::Root]) {
            let switch = self.switches.entry(node).or_insert_with(|| Switch::new(self.config));
            let level = level_of(node, tree);
            switch.install(JobConfig { job_id, job_token, lane_count, level }).map_err(|error| format!("{error:?}"))?;
        }
        let server = |lane| {
            Server::new(ServerConfig {
                job_id: spec.job_id,
                job_token: spec.job_token,
                lane,
                tree: tree.clone(),
                slot_count: self.config.slot_count,
                window_max: spec.window_max,
                element_count_max: self.config.element_count_max,
                stragglers: None,
                overflow_often: OVERFLOW_OFTEN,
            })
        };
        self.jobs.push(Job { spec: spec.clone(), servers: (0..spec.lane_count).map(server).collect() });
        Ok(())
    }

    fn remove(&mut self, job_id: u32) -> Result<(), String> {
        let removed: Vec<bool> = self.switches.values_mut().map(|switch| switch.remove(job_id)).collect();
        if removed.contains(&true) { Ok(()) } else { Err(format!("no job {job_id:#x}")) }
    }

    fn exchange(&mut self, arrival: &Arrival, packet: &[u8]) -> Result<Exchange, String> {
        match arrival.node {
            Node::Server => self.at_server(arrival, packet),
            _ => self.at_switch(arrival, packet),
        }
    }
}

impl AtpProgramTarget {
    fn at_switch(&mut self, arrival: &Arrival, packet: &[u8]) -> Result<Exchange, String> {
        let node = arrival.node;
        let switch = self.switches.get_mut(&node).ok_or_else(|| format!("no switch {node:?}"))?;
        let context = Context { now: Time::from_ns(arrival.now_ns), egress_queue_bytes: arrival.queue_bytes };
        let verdict = switch.process(&context, packet, &mut self.output);
        let (verdict, reason, answers) = match verdict {
            Verdict::Drop(DropReason::AwaitingOthers) => (VerdictName::Absorb, None, Vec::new()),
            Verdict::Drop(reason) => (VerdictName::Drop, Some(reason), Vec::new()),
            Verdict::Refuse { reason, bytes } => {
                (VerdictName::Refuse, Some(reason), vec![(Receiver::Sender, self.output[..bytes].to_vec())])
            }
            Verdict::Up { bytes } => (VerdictName::Up, None, vec![(Receiver::Up, self.output[..bytes].to_vec())]),
            Verdict::Down { bytes, children, payload_child, .. } => {
                let all = 0..self.jobs[arrival.job].spec.children(node);
                let copies = all.filter(|child| children >> child & 1 == 1);
                let copies = copies.map(|child| (Receiver::Child(child), self.copy_for(child, payload_child, bytes)));
                (VerdictName::Down, None, copies.collect())
            }
        };
        Ok(Exchange { verdict, reason, answers })
    }

    fn copy_for(&self, child: u8, payload_child: Option<u8>, bytes: usize) -> Vec<u8> {
        let parameter = &self.output[..bytes];
        if payload_child.is_none_or(|only| only == child) {
            return parameter.to_vec();
        }
        let mut header = vec![0; bytes];
        let bytes = without_payload(parameter, &mut header);
        header.truncate(bytes);
        header
    }

    fn at_server(&mut self, arrival: &Arrival, packet: &[u8]) -> Result<Exchange, String> {
        let servers = &mut self.jobs[arrival.job].servers;
        let place = usize::from(arrival.lane).min(servers.len() - 1);
        let server = &mut servers[place];
        let before = server.counters().drops;
        server.handle_packet(Time::ZERO, packet);
        let after = server.counters().drops;
        let reason = DropReason::ALL.into_iter().find(|&reason| after[reason as usize] > before[reason as usize]);
        let mut answers = Vec::new();
        while let Some(transmit) = server.poll_transmit(&mut self.output) {
            answers.push((Receiver::Switch, self.output[..transmit.bytes].to_vec()));
        }
        let verdict = verdict_of_server(answers.first().map(|(_, answer)| answer.as_slice()), reason);
        Ok(Exchange { verdict, reason, answers })
    }
}

/// What the server decided, by the first datagram that left it and the reason that it counted.
pub fn verdict_of_server(answer: Option<&[u8]>, reason: Option<DropReason>) -> VerdictName {
    let header = answer.and_then(|answer| Header::parse(answer).ok()).map(|(header, _)| header);
    match (header, reason) {
        (None, None) => VerdictName::Absorb,
        (None, Some(_)) => VerdictName::Drop,
        (Some(header), _) if header.kind == Kind::Refusal => VerdictName::Refuse,
        (Some(header), _) if header.worker_rank == RANK_ALL => VerdictName::Multicast,
        (Some(_), _) => VerdictName::Reply,
    }
}
