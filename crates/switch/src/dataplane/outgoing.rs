//! Datagrams that wait to leave, grouped so that the kernel takes many at once.

use std::net::SocketAddr;

use fanin_net::{NetError, SendBatch, UdpPort};
use fanin_protocol::atp;
use fanin_protocol::switchml::without_payload;
use fanin_wire::generated::ATP_MAGIC;

use super::peers::Peers;

/// Longest UDP payload there is.
const DATAGRAM_BYTES_MAX: usize = 65_536;
/// Longest header-only Aggregate.
const HEADER_BYTES_MAX: usize = 64;

/// To whom the datagrams of a multicast batch go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub job_number: u8,
    pub lane: u16,
    /// The one rank that gets payloads; the others get headers.
    pub destination: Option<u16>,
}

/// One multicast batch and one unicast batch; a change of group or of
/// destination sends what waits.
pub(super) struct Outgoing {
    group: Option<Group>,
    full: SendBatch,
    headers: SendBatch,
    peer: Option<SocketAddr>,
    unicast: SendBatch,
    scratch: Box<[u8]>,
}

impl Outgoing {
    pub fn new() -> Outgoing {
        Outgoing {
            group: None,
            full: SendBatch::new(),
            headers: SendBatch::with_capacity(64 << 10),
            peer: None,
            unicast: SendBatch::new(),
            scratch: vec![0; DATAGRAM_BYTES_MAX].into(),
        }
    }

    /// Space of `bytes_max` for the next packet's outcome. It lies in the
    /// multicast batch, where most of what is written stays.
    pub fn space(&mut self, bytes_max: usize, port: &mut UdpPort, peers: &mut Peers) -> Result<&mut [u8], NetError> {
        if self.full.spare(bytes_max).is_err() {
            self.flush_multicast(port, peers)?;
        }
        Ok(self.full.spare(bytes_max).unwrap_or(&mut self.scratch))
    }

    /// Keeps the `bytes` just written to `space` for all workers of a group.
    pub fn multicast(
        &mut self,
        group: Group,
        bytes: usize,
        port: &mut UdpPort,
        peers: &mut Peers,
    ) -> Result<(), NetError> {
        if self.group != Some(group) && !self.full.is_empty() {
            let written = self.full.spare(bytes).map(|space| &space[..bytes]);
            self.scratch[..bytes].copy_from_slice(written.unwrap_or_default());
            self.flush_multicast(port, peers)?;
            let space = self.full.spare(bytes).expect("an empty batch holds one datagram");
            space.copy_from_slice(&self.scratch[..bytes]);
        }
        self.group = Some(group);
        if group.destination.is_some() {
            self.add_header_only(group, bytes, port, peers)?;
        }
        self.full.commit(bytes);
        Ok(())
    }

    fn add_header_only(
        &mut self,
        group: Group,
        bytes: usize,
        port: &mut UdpPort,
        peers: &Peers,
    ) -> Result<(), NetError> {
        if self.headers.spare(HEADER_BYTES_MAX).is_err() {
            self.flush_headers(port, peers)?;
        }
        let aggregate = self.full.spare(bytes).expect("space was just written");
        if let Ok(space) = self.headers.spare(HEADER_BYTES_MAX) {
            let header_bytes = match aggregate.starts_with(&ATP_MAGIC.to_be_bytes()) {
                true => atp::without_payload(&aggregate[..bytes], space),
                false => without_payload(aggregate, peers.has_checksum(group.job_number), space),
            };
            self.headers.commit(header_bytes);
        }
        Ok(())
    }

    /// Keeps the `bytes` just written to `space` for one worker.
    pub fn reply(&mut self, bytes: usize, to: SocketAddr, port: &mut UdpPort) -> Result<(), NetError> {
        if self.peer != Some(to) || self.unicast.spare(bytes).is_err() {
            self.flush_unicast(port)?;
        }
        self.peer = Some(to);
        let written: &[u8] = self.full.spare(bytes).map_or(&[], |space| &space[..bytes]);
        if let Ok(space) = self.unicast.next_slot(bytes) {
            space.copy_from_slice(written);
        }
        Ok(())
    }

    /// Space of `bytes_max` for a packet that will most likely go to one address, where it is sent from.
    pub fn unicast_space(
        &mut self,
        to: SocketAddr,
        bytes_max: usize,
        port: &mut UdpPort,
    ) -> Result<&mut [u8], NetError> {
        if self.peer != Some(to) || self.unicast.spare(bytes_max).is_err() {
            self.flush_unicast(port)?;
        }
        self.peer = Some(to);
        Ok(self.unicast.spare(bytes_max).unwrap_or(&mut self.scratch))
    }

    /// Keeps the `bytes` just written to `unicast_space`.
    pub fn commit_unicast(&mut self, bytes: usize) {
        self.unicast.commit(bytes);
    }

    /// Sends the `bytes` just written to `unicast_space` to another address, at once: this is seldom.
    pub fn send_back(&mut self, bytes: usize, to: SocketAddr, port: &mut UdpPort) -> Result<(), NetError> {
        if let Ok(space) = self.unicast.spare(bytes) {
            self.scratch[..bytes].copy_from_slice(&space[..bytes]);
        }
        self.flush_unicast(port)?;
        if let Ok(space) = self.unicast.next_slot(bytes) {
            space.copy_from_slice(&self.scratch[..bytes]);
        }
        self.peer = Some(to);
        self.flush_unicast(port)
    }

    /// Sends all that waits.
    pub fn flush(&mut self, port: &mut UdpPort, peers: &mut Peers) -> Result<(), NetError> {
        self.flush_unicast(port)?;
        self.flush_multicast(port, peers)
    }

    fn flush_unicast(&mut self, port: &mut UdpPort) -> Result<(), NetError> {
        if let Some(peer) = self.peer.take()
            && !self.unicast.is_empty()
        {
            send(port, &self.unicast, peer)?;
        }
        self.unicast.clear();
        Ok(())
    }

    fn flush_multicast(&mut self, port: &mut UdpPort, peers: &mut Peers) -> Result<(), NetError> {
        self.flush_headers(port, peers)?;
        if let Some(group) = self.group.filter(|_| !self.full.is_empty()) {
            match group.destination {
                None => self.send_to_all(group, port, peers)?,
                Some(rank) => {
                    if let Some(address) =
                        peers.group(group.job_number, group.lane).get(usize::from(rank)).copied().flatten()
                    {
                        send(port, &self.full, address)?;
                    }
                }
            }
        }
        self.full.clear();
        Ok(())
    }

    /// What a group does not get now, its members ask for, and are answered
    /// one by one.
    fn send_to_all(&self, group: Group, port: &mut UdpPort, peers: &mut Peers) -> Result<(), NetError> {
        let mut group_failed = false;
        for address in peers.destinations(group.job_number, group.lane) {
            group_failed |= !send(port, &self.full, address)? && address.ip().is_multicast();
        }
        if group_failed {
            peers.dissolve_group(group.job_number, group.lane);
        }
        Ok(())
    }

    fn flush_headers(&mut self, port: &mut UdpPort, peers: &Peers) -> Result<(), NetError> {
        if let Some(group) = self.group.filter(|_| !self.headers.is_empty()) {
            for (rank, address) in members(peers, group) {
                if group.destination != Some(rank) {
                    send(port, &self.headers, address)?;
                }
            }
        }
        self.headers.clear();
        Ok(())
    }
}

fn members(peers: &Peers, group: Group) -> impl Iterator<Item = (u16, SocketAddr)> + '_ {
    let addresses = peers.group(group.job_number, group.lane).iter();
    addresses.enumerate().filter_map(|(rank, address)| Some((rank as u16, (*address)?)))
}

/// A worker that cannot be reached is its controller's business; the others
/// still get their copies. What is not sent, its worker asks for again.
///
/// Returns whether the kernel took the batch.
fn send(port: &mut UdpPort, batch: &SendBatch, to: SocketAddr) -> Result<bool, NetError> {
    match port.send(batch, to) {
        Ok(_) => Ok(true),
        Err(error @ (NetError::DatagramTooLong { .. } | NetError::Unreachable { .. } | NetError::Send { .. })) => {
            tracing::warn!(%to, %error, "cannot send to a worker");
            Ok(false)
        }
        Err(error) => Err(error),
    }
}
