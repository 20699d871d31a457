//! A plan as `experiments/sim/ns3/network.cc` reads it.

use std::fmt::Write;

use anyhow::ensure;
use fanin_sim::engine::Plan;
use fanin_sim::fabric::{Fabric, Port, Routes, next_hop};
use fanin_sim::packet::{Packet, hash_of_answers};
use fanin_sim::transport::{Congestion, Transport};
use fanin_sim::workload::Flow;

const PS_PER_US: u64 = 1_000_000;

/// Network, cables and flows; 0 bytes are a flow without an end.
///
/// # Errors
/// For what ns-3 is not told: jobs, memory that queues share, cables whose directions differ in delay.
pub fn input(mut plan: Plan) -> anyhow::Result<String> {
    ensure!(plan.ranks.iter().all(Vec::is_empty), "only flows can be told to ns-3, no jobs");
    ensure!(plan.memory.is_none(), "queues that share memory cannot be told to ns-3");
    let routes = plan.fabric.routes()?;
    let ports = plan.fabric.ports();
    let mut flows = Vec::new();
    for (source, own) in plan.sources.iter_mut().enumerate() {
        for stream in own {
            while stream.next_ps() < plan.duration_ps {
                flows.push((source as u16, stream.take()));
            }
        }
    }
    let mut text = header(&plan, flows.len());
    for cable in &plan.fabric.cables {
        let [one, other] = cable.links;
        ensure!(one.delay_ps == other.delay_ps, "a cable of ns-3 has one delay");
        let _ = write!(text, "cable {} {}", cable.ends[0], cable.ends[1]);
        for link in cable.links {
            let (queue, mark) = (link.queue_bytes_max.min(1 << 30), link.mark_bytes.min(1 << 31));
            let _ = write!(text, " {} {} {queue} {mark}", link.rate_bps, link.delay_ps);
        }
        text.push('\n');
    }
    for (source, flow) in &flows {
        add_flow(&mut text, *source, flow, &plan.fabric, &ports, &routes);
    }
    Ok(text)
}

fn header(plan: &Plan, flow_count: usize) -> String {
    let Plan { fabric, transport, duration_ps, .. } = plan;
    let Transport { segment_bytes, initial_window, timeout_initial_ps, timeout_min_ps, .. } = *transport;
    let (name, gain) = match transport.congestion {
        Congestion::Dctcp { gain } => ("dctcp", gain),
        Congestion::NewReno => ("newreno", 0.0625),
    };
    format!(
        "network {} {} {} {flow_count} {} {}\ntransport {name} {gain} {initial_window} {} {} {segment_bytes}\n",
        fabric.host_count,
        fabric.switch_count,
        fabric.cables.len(),
        transport.data_bytes(segment_bytes),
        duration_ps / PS_PER_US,
        timeout_initial_ps / PS_PER_US,
        timeout_min_ps / PS_PER_US,
    )
}

fn add_flow(text: &mut String, source: u16, flow: &Flow, fabric: &Fabric, ports: &[Vec<Port>], routes: &Routes) {
    let bytes = if flow.bytes == u64::MAX { 0 } else { flow.bytes };
    let _ = write!(text, "flow {source} {} {bytes} {}", flow.destination, flow.at_ps);
    let ends = [(source, flow.destination, flow.hash), (flow.destination, source, hash_of_answers(flow.hash))];
    for (from, to, hash) in ends {
        let packet = Packet { source: from, destination: to, hash, ..Packet::default() };
        let path = path(&packet, fabric, ports, routes);
        let _ = write!(text, " {}", path.len());
        for cable in path {
            let _ = write!(text, " {cable}");
        }
    }
    text.push('\n');
}

/// The cables that a packet takes.
fn path(packet: &Packet, fabric: &Fabric, ports: &[Vec<Port>], routes: &Routes) -> Vec<u32> {
    let mut port = ports[usize::from(packet.source)][0];
    let mut cables = vec![port.cable];
    while port.neighbour >= fabric.host_count {
        let switch = &routes.switches[(port.neighbour - fabric.host_count) as usize];
        port = ports[port.neighbour as usize][next_hop(switch, routes, packet)];
        cables.push(port.cable);
    }
    cables
}
