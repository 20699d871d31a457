//! Contributions made in the kernel, for measurements: sockets are too slow to keep the XDP program busy.

use aya::maps::{Array, DevMap, MapData};
use aya::programs::{TestRunAttrs, TestRunOptions, XdpMode};
use aya::{Ebpf, EbpfLoader, TestRun as _};
use fanin_protocol::switchml::JobConfig;
use fanin_wire::generated::{HEADER_BYTES, RANK_ALL};
use fanin_wire::{ElementFormat, Kind, Operator, fanin};

use crate::kernel::{NO_FLAGS, program};
use crate::state::{Headers, Position};
use crate::{XdpError, checksum, sys};

#[cfg(has_program)]
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/traffic.bpf.o"));
#[cfg(not(has_program))]
static OBJECT: &[u8] = &[];

/// Ethernet, IPv4 and UDP.
const FRAME_BYTES: usize = 14 + 20 + 8;
/// Frames that are made before they are delivered.
const BATCH_FRAMES: u32 = 64;
/// Ranks that the program has room for.
const RANKS_MAX: u16 = 64;

/// What the frames are of.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    /// Their job, of one lane. It may have more ranks than contribute.
    pub config: JobConfig,
    /// Ranks that contribute, from 0 on; at most 64.
    pub rank_count: u16,
    /// 32-bit integers in each frame.
    pub element_count: u16,
    /// First UDP port of the data plane.
    pub port: u16,
    /// Frames carry their CRC-32C.
    pub has_checksum: bool,
    /// Every frame belongs to chunk 0: all but each rank's first are duplicates.
    pub is_repeated: bool,
}

/// A stream of frames, chunk after chunk and in each chunk rank after rank. Elements are zeros.
pub struct Traffic {
    ebpf: Ebpf,
    links: DevMap<MapData>,
    positions: Array<MapData, Position>,
    frame: Vec<u8>,
}

impl Traffic {
    /// Loads the program that makes the frames.
    ///
    /// # Errors
    /// [`XdpError`]: no program in this build, no privileges, or a kernel that does not take it.
    pub fn load(stream: &Stream) -> Result<Traffic, XdpError> {
        let config = &stream.config;
        let payload_bytes = 4 * usize::from(stream.element_count);
        let (rank_count, slot_count) = (u32::from(stream.rank_count.min(RANKS_MAX)), config.slots_per_lane);
        let (has_checksum, is_repeated) = (u32::from(stream.has_checksum), u32::from(stream.is_repeated));
        let (slots_shift, zeros_tables) = (slot_count.trailing_zeros(), checksum::behind_zeros(payload_bytes));
        let mut loader = EbpfLoader::new();
        loader
            .override_global("crc_tables", &checksum::TABLES[..], true)
            .override_global("zeros_tables", &zeros_tables[..], true)
            .override_global("rank_count", &rank_count, true)
            .override_global("slot_count", &slot_count, true)
            .override_global("slots_shift", &slots_shift, true)
            .override_global("has_checksum", &has_checksum, true)
            .override_global("is_repeated", &is_repeated, true);
        let mut ebpf = load_program(&mut loader, "generate")?;
        let mut map = |name: &str| ebpf.take_map(name).unwrap_or_else(|| unreachable!("the object has the map {name}"));
        let links = DevMap::try_from(map("links"))?;
        let positions = Array::try_from(map("positions"))?;
        let mut templates = Array::try_from(map("templates"))?;
        for rank in 0..rank_count {
            templates.set(rank, Headers::from_bytes(&headers(stream, rank as u16)), NO_FLAGS)?;
        }
        Ok(Traffic { ebpf, links, positions, frame: vec![0; FRAME_BYTES + HEADER_BYTES + payload_bytes] })
    }

    /// Says by which interface of this thread's network namespace a rank's frames leave. The other end of a veth needs a
    /// program of its own, or the kernel delivers none.
    ///
    /// # Errors
    /// [`XdpError`] for an interface that is not there or takes no frames.
    pub fn link(&mut self, rank: u16, interface: &str) -> Result<(), XdpError> {
        let no_interface = || XdpError::NoInterface { interface: interface.into() };
        let index = sys::interface_index(interface).ok_or_else(no_interface)?;
        self.links
            .set(rank.into(), index, None, NO_FLAGS)
            .map_err(|error| XdpError::NotAttached { interface: interface.into(), why: crate::error::chain(&error) })
    }

    /// Goes back to chunk 0.
    ///
    /// # Errors
    /// [`XdpError::Map`].
    pub fn restart(&mut self) -> Result<(), XdpError> {
        Ok(self.positions.set(0, Position::default(), NO_FLAGS)?)
    }

    /// Sends so many frames; they are received on this thread's processor, before this returns but for a few.
    ///
    /// # Errors
    /// [`XdpError::NotRun`], on Linux before 5.18 and when a signal came.
    pub fn send(&mut self, frames: u32) -> Result<(), XdpError> {
        let attrs = TestRunAttrs::new().xdp_live_frames(BATCH_FRAMES);
        let options = TestRunOptions { data_in: Some(&self.frame), repeat: frames, attrs, ..TestRunOptions::default() };
        let ran = program(&mut self.ebpf, "generate").test_run(options);
        ran.map(drop).map_err(|error| XdpError::NotRun { why: crate::error::chain(&error) })
    }
}

/// What a program without work does with each frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Empty {
    /// Drops it.
    Drop,
    /// Sends it back out of the interface on which it came.
    SendBack,
}

/// A program without work: the yardstick. Dropping it detaches it.
pub struct EmptyProgram {
    ebpf: Ebpf,
    name: &'static str,
}

impl EmptyProgram {
    /// Loads it.
    ///
    /// # Errors
    /// As [`Traffic::load`].
    pub fn load(empty: Empty) -> Result<EmptyProgram, XdpError> {
        let name = match empty {
            Empty::Drop => "drop_all",
            Empty::SendBack => "send_back",
        };
        Ok(EmptyProgram { ebpf: load_program(&mut EbpfLoader::new(), name)?, name })
    }

    /// Puts it in front of an interface of this thread's network namespace, in the driver.
    ///
    /// # Errors
    /// [`XdpError`], saying what to change.
    pub fn attach(&mut self, interface: &str) -> Result<(), XdpError> {
        let no_interface = || XdpError::NoInterface { interface: interface.into() };
        let index = sys::interface_index(interface).ok_or_else(no_interface)?;
        let attached = program(&mut self.ebpf, self.name).attach_to_if_index(index, XdpMode::Driver);
        attached.map(drop).map_err(|error| XdpError::attach(interface, &error))
    }
}

fn load_program(loader: &mut EbpfLoader<'_>, name: &str) -> Result<Ebpf, XdpError> {
    if !crate::HAS_PROGRAM {
        return Err(XdpError::NotBuilt);
    }
    let mut ebpf = loader.load(OBJECT).map_err(|error| XdpError::load(&error))?;
    program(&mut ebpf, name).load().map_err(|error| XdpError::verify(&error))?;
    Ok(ebpf)
}

/// A rank's headers for chunk 0. Every rank has addresses of its own.
fn headers(stream: &Stream, rank: u16) -> [u8; FRAME_BYTES + HEADER_BYTES] {
    let header = fanin::Header {
        kind: Kind::Contribution,
        job_id: stream.config.job_id,
        job_token: stream.config.job_token,
        worker_rank: rank,
        slot_index: 0,
        slot_parity: 0,
        chunk_index: 0,
        collective_tag: 1,
        block_exponent_next: 0,
        element_count: stream.element_count,
        element_format: ElementFormat::Int32,
        operator: Operator::Add,
        detail: 0,
        destination: RANK_ALL,
        echo: 0,
    };
    let mut datagram = vec![0; header.datagram_bytes()];
    header.seal(&mut datagram);
    let udp_bytes = (8 + datagram.len()) as u16;
    let mut headers = [0; FRAME_BYTES + HEADER_BYTES];
    headers[..12].copy_from_slice(&[2, 0, 0, 0, 0, 0xff, 2, 0, 0, 1, 0, rank as u8]);
    headers[12..14].copy_from_slice(&[8, 0]);
    headers[14] = 0x45;
    headers[16..18].copy_from_slice(&(20 + udp_bytes).to_be_bytes());
    headers[22..24].copy_from_slice(&[64, 17]);
    headers[26..34].copy_from_slice(&[10, 0, 0, rank as u8 + 1, 10, 0, 0, 254]);
    headers[34..36].copy_from_slice(&(5000 + rank).to_be_bytes());
    headers[36..38].copy_from_slice(&stream.port.to_be_bytes());
    headers[38..40].copy_from_slice(&udp_bytes.to_be_bytes());
    headers[FRAME_BYTES..].copy_from_slice(&datagram[..HEADER_BYTES]);
    headers
}
