//! The events of a world, one after another.

use anyhow::{bail, ensure};
use fanin_protocol::Verdict;
use fanin_protocol::atp;
use fanin_protocol::switchml;
use fanin_protocol::time::{Span, Time};
use std::cmp::Reverse;

use super::endpoint::Outcome;
use super::link::Flight;
use super::route::{LinkId, Route};
use super::{End, Event, Protocol, Role, Workload, World};
use fanin_sim::datagrams::DatagramId;

/// A datagram's job and lane, which drivers know by socket.
#[derive(Clone, Copy, Debug)]
struct Tag {
    job: u16,
    lane: u16,
}

impl World {
    /// Runs until `end`.
    ///
    /// # Errors
    /// A sum that is wrong, or a packet that is refused.
    pub fn run_until(&mut self, end: Time) -> anyhow::Result<()> {
        while self.events.peek().is_some_and(|Reverse((at, ..))| *at <= end.as_ns()) {
            self.step()?;
        }
        self.now = self.now.max(end);
        self.check_sums()
    }

    /// Runs until every job with an end has come to it.
    ///
    /// # Errors
    /// As [`World::run_until`], or if jobs have not finished by `limit`.
    pub fn run_to_the_end(&mut self, limit: Time) -> anyhow::Result<()> {
        while !self.is_done() {
            ensure!(
                self.now <= limit,
                "jobs have not finished after {} ms of simulated time",
                limit.as_ns() / 1_000_000
            );
            ensure!(!self.events.is_empty(), "nothing is left to happen, and jobs have not finished");
            // Whether all is done is asked now and then only.
            for _ in 0..1000 {
                if self.events.is_empty() {
                    break;
                }
                self.step()?;
            }
        }
        self.check_sums()
    }

    fn is_done(&self) -> bool {
        self.jobs.iter().all(|job| {
            let Some(rounds) = job.spec.workload.rounds() else { return true };
            job.progress.iter().all(|progress| progress.completed.len() as u64 >= rounds)
        })
    }

    fn check_sums(&self) -> anyhow::Result<()> {
        match self.endpoints.iter().find(|endpoint| endpoint.memory.wrong > 0) {
            None => Ok(()),
            Some(endpoint) => bail!(
                "seed {}: rank {} of job {} took {} wrong sums",
                self.spec.seed,
                endpoint.rank,
                endpoint.job,
                endpoint.memory.wrong
            ),
        }
    }

    pub(super) fn schedule(&mut self, at: Time, event: Event) {
        self.scheduled += 1;
        self.events.push(Reverse((at.as_ns(), self.scheduled, event)));
    }

    fn step(&mut self) -> anyhow::Result<()> {
        let Some(Reverse((at, _, event))) = self.events.pop() else { return Ok(()) };
        self.now = Time::from_ns(at);
        match event {
            Event::Arrive { link } => self.arrive(link as usize),
            Event::Wake { endpoint } => self.wake(endpoint as usize),
            Event::Submit { job, rank } => self.submit(usize::from(job), usize::from(rank)),
        }
    }

    fn arrive(&mut self, link: LinkId) -> anyhow::Result<()> {
        let Some(flight) = self.links[link].arrive() else { return Ok(()) };
        if let Some(next) = self.links[link].first() {
            let at = Time::from_ns(next.arrives_ns);
            self.schedule(at, Event::Arrive { link: link as u32 });
        }
        self.hops += 1;
        match self.ends[link] {
            End::Switch(switch) => self.at_switch(switch, link, &flight)?,
            End::Host(host) => self.at_host(host, &flight)?,
        }
        self.packets.release(flight.packet);
        Ok(())
    }

    fn send(&mut self, link: LinkId, tag: Tag, packet: DatagramId, datagram_bytes: usize) {
        let wire_bytes = self.jobs[usize::from(tag.job)].wire_bytes(datagram_bytes);
        let was_idle = self.links[link].first().is_none();
        let flight = Flight { arrives_ns: 0, packet, job: tag.job, lane: tag.lane };
        if !self.links[link].send(self.now, wire_bytes, flight) {
            self.packets.release(packet);
        } else if was_idle && let Some(first) = self.links[link].first() {
            let at = Time::from_ns(first.arrives_ns);
            self.schedule(at, Event::Arrive { link: link as u32 });
        }
    }

    /// Sends what is in the output buffer.
    fn send_output(&mut self, link: LinkId, tag: Tag, bytes: usize) {
        let packet = self.packets.put(&self.output[..bytes], 1);
        self.send(link, tag, packet, bytes);
    }

    /// Sends what is in the output buffer to children of a switch; a bit per child, and all beyond the word.
    fn send_output_down(&mut self, switch: usize, tag: Tag, children: u32, bytes: usize) {
        let mut links = std::mem::take(&mut self.fan_out);
        links.clear();
        if let Some(Route::Program { down, .. }) = &self.jobs[usize::from(tag.job)].routes[switch] {
            let wanted = |child: usize| child >= 32 || children >> child & 1 == 1;
            let known = down.iter().enumerate().filter(|(child, _)| wanted(*child));
            links.extend(known.filter_map(|(_, link)| *link));
        }
        if !links.is_empty() {
            let packet = self.packets.put(&self.output[..bytes], links.len() as u16);
            links.iter().for_each(|&link| self.send(link, tag, packet, bytes));
        }
        self.fan_out = links;
    }

    fn at_switch(&mut self, switch: usize, from: LinkId, flight: &Flight) -> anyhow::Result<()> {
        let job = &self.jobs[usize::from(flight.job)];
        let tag = Tag { job: flight.job, lane: flight.lane };
        match job.routes[switch] {
            None => bail!("a packet of job {} came to switch {switch}, where it has no way", flight.job),
            Some(Route::Forward { from_below, up, down }) => {
                let bytes = self.packets.get(flight.packet).len();
                self.output[..bytes].copy_from_slice(self.packets.get(flight.packet));
                self.send_output(if from == from_below { up } else { down }, tag, bytes);
                Ok(())
            }
            Some(Route::Program { up, .. }) => match job.spec.protocol {
                Protocol::Atp { .. } => self.at_atp(switch, up, tag, flight.packet),
                Protocol::Static { .. } => self.at_static(switch, tag, flight.packet),
            },
        }
    }

    fn at_atp(&mut self, switch: usize, up: LinkId, tag: Tag, packet: DatagramId) -> anyhow::Result<()> {
        let queued = self.links[up].queue_bytes(self.now).min(u64::from(u32::MAX)) as u32;
        let context = atp::Context { now: self.now, egress_queue_bytes: queued };
        let node = &mut self.switches[switch];
        let program = node.own[usize::from(tag.job)].as_mut().unwrap_or(&mut node.atp);
        match program.process(&context, self.packets.get(packet), &mut self.output) {
            atp::Verdict::Drop(_) => {}
            atp::Verdict::Refuse { reason, .. } => {
                bail!("switch {switch} refuses a packet of job {}: {reason}", tag.job)
            }
            atp::Verdict::Up { bytes } => self.send_output(up, tag, bytes),
            atp::Verdict::Down { bytes, children, .. } => {
                // All ranks receive every sum here, so no child gets a header only.
                self.send_output_down(switch, tag, children, bytes);
            }
        }
        Ok(())
    }

    fn at_static(&mut self, switch: usize, tag: Tag, packet: DatagramId) -> anyhow::Result<()> {
        let context = switchml::Context { now: self.now, wire_format: switchml::WireFormat::Fanin, source_rank: None };
        let program = &mut self.switches[switch].slotted;
        match program.process(&context, self.packets.get(packet), &mut self.output) {
            Verdict::Drop(_) => {}
            Verdict::Refuse { reason, .. } => bail!("switch {switch} refuses a packet of job {}: {reason}", tag.job),
            Verdict::Reply { bytes } | Verdict::Missing { bytes } | Verdict::ProbeReply { bytes } => {
                let child = program.admitted().map_or(0, |admitted| 1 << admitted.rank);
                self.send_output_down(switch, tag, child, bytes);
            }
            Verdict::Multicast { bytes, .. } => {
                self.send_output_down(switch, tag, u32::MAX, bytes);
            }
        }
        Ok(())
    }

    fn at_host(&mut self, host: usize, flight: &Flight) -> anyhow::Result<()> {
        let number = usize::from(flight.job);
        match self.roles[host][number] {
            Role::None => bail!("a packet of job {number} came to host {host}, which has no part in it"),
            Role::Server => self.at_server(host, flight),
            Role::Worker { rank } => {
                let endpoint = self.jobs[number].endpoint(rank.into(), flight.lane);
                self.endpoints[endpoint].handle_packet(self.now, self.packets.get(flight.packet));
                return self.pump(endpoint);
            }
        }
        Ok(())
    }

    fn at_server(&mut self, host: usize, flight: &Flight) {
        let tag = Tag { job: flight.job, lane: 0 };
        let up = self.link_names().host_up(host);
        let number = usize::from(flight.job);
        if let Some(server) = &mut self.jobs[number].server {
            server.handle_packet(self.now, self.packets.get(flight.packet));
        }
        loop {
            let server = self.jobs[number].server.as_mut();
            let Some(transmit) = server.and_then(|server| server.poll_transmit(&mut self.output)) else { return };
            self.send_output(up, tag, transmit.bytes);
        }
    }

    fn wake(&mut self, number: usize) -> anyhow::Result<()> {
        let endpoint = &mut self.endpoints[number];
        if endpoint.wakes_at != Some(self.now) {
            // An earlier time was set since.
            return Ok(());
        }
        endpoint.wakes_at = None;
        if endpoint.poll_timeout().is_some_and(|due| due <= self.now) {
            endpoint.handle_timeout(self.now);
        }
        self.pump(number)
    }

    /// Sends what a worker has to send, and does what it has come to.
    fn pump(&mut self, number: usize) -> anyhow::Result<()> {
        let endpoint = &self.endpoints[number];
        let tag = Tag { job: endpoint.job as u16, lane: endpoint.lane };
        let (job, rank, up) = (endpoint.job, usize::from(endpoint.rank), self.link_names().host_up(endpoint.host));
        loop {
            while let Some(bytes) = self.endpoints[number].poll_transmit(self.now, &mut self.output) {
                self.send_output(up, tag, bytes);
            }
            match self.endpoints[number].poll_event() {
                None => break,
                Some(Outcome::Refused(reason)) => bail!("rank {rank} of job {job} is refused: {reason}"),
                Some(Outcome::Completed) => self.lane_completed(job, rank)?,
            }
        }
        self.set_timer(number);
        Ok(())
    }

    fn set_timer(&mut self, number: usize) {
        let endpoint = &mut self.endpoints[number];
        let Some(due) = endpoint.poll_timeout() else { return };
        let due = due.max(self.now);
        // A later time is seen when the earlier one comes: most answers come in time, and move it on.
        if endpoint.wakes_at.is_none_or(|at| due < at) {
            endpoint.wakes_at = Some(due);
            self.schedule(due, Event::Wake { endpoint: number as u32 });
        }
    }

    fn lane_completed(&mut self, number: usize, rank: usize) -> anyhow::Result<()> {
        let now = self.now;
        let lanes = self.jobs[number].lane_count;
        let progress = &mut self.jobs[number].progress[rank];
        progress.lanes_left = progress.lanes_left.saturating_sub(1);
        if progress.lanes_left > 0 {
            return Ok(());
        }
        progress.completed.push(now);
        progress.lanes_left = lanes;
        let (completed, rounds) = (progress.completed.len() as u64, self.jobs[number].spec.workload.rounds());
        if rounds.is_none_or(|rounds| completed < rounds) {
            let at = now + self.compute_time(number);
            self.schedule(at, Event::Submit { job: number as u16, rank: rank as u16 });
        }
        Ok(())
    }

    /// How long a rank computes before its next tensor.
    pub(super) fn compute_time(&mut self, number: usize) -> Span {
        match self.jobs[number].spec.workload {
            Workload::Endless { .. } => Span::ZERO,
            Workload::Training { compute, jitter_ppm, .. } => {
                let longest = Span::from_ns(compute.as_ns() * u64::from(jitter_ppm) / 1_000_000);
                Span::from_ns(compute.as_ns() + self.random.span_up_to(longest).as_ns())
            }
        }
    }

    fn submit(&mut self, number: usize, rank: usize) -> anyhow::Result<()> {
        let job = &mut self.jobs[number];
        // With data always to send, one tensor waits behind the one in progress.
        let ahead = if matches!(job.spec.workload, Workload::Endless { .. }) { 2 } else { 1 };
        let lanes = job.lane_count;
        let progress = &mut job.progress[rank];
        progress.lanes_left = if progress.lanes_left == 0 { lanes } else { progress.lanes_left };
        let until = progress.completed.len() as u64 + ahead;
        let from = std::mem::replace(&mut progress.submitted, until);
        for id in from..until {
            for lane in 0..lanes {
                let endpoint = self.jobs[number].endpoint(rank, lane);
                let submission = self.jobs[number].submission(id, lane);
                self.endpoints[endpoint].submit(submission);
            }
        }
        for lane in 0..lanes {
            let endpoint = self.jobs[number].endpoint(rank, lane);
            self.pump(endpoint)?;
        }
        Ok(())
    }
}
