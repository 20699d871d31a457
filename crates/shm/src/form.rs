//! How ranks of one host find each other: an abstract Unix socket that local rank 0 listens on until all have come.
//!
//! A rank says who it is and sends its own process as a descriptor; local rank 0 answers everyone with the memory file and
//! all processes. Then the sockets are closed. Nothing has a name in a file system, so nothing is left behind by a crash.
//! Abstract names belong to a network namespace: ranks in different namespaces count as ranks on different hosts.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::shared::Shared;
use crate::{Config, Error, sys};

/// The first bytes of a hello; ranks of different builds do not fit together.
const MAGIC: &[u8] = concat!("fanin-shm 1 ", env!("CARGO_PKG_VERSION")).as_bytes();
const MESSAGE_BYTES_MAX: usize = 4096;
/// How long a rank that found nobody listening waits before it tries again.
const RETRY: Duration = Duration::from_millis(3);
/// How long local rank 0 gives one connection to say who it is.
const HELLO_TIMEOUT: Duration = Duration::from_secs(1);
/// How much longer than its own timeout a rank waits for local rank 0 to name the missing.
const GRACE: Duration = Duration::from_millis(500);

/// Answers of local rank 0.
const WELCOME: u8 = 1;
const REFUSED: u8 = 2;

/// Meets the other ranks and returns this rank's view of the memory they share.
pub(crate) fn form(config: &Config) -> Result<Shared, Error> {
    let process = sys::own_process().map_err(Error::system("name this process"))?;
    if config.local_rank == 0 { host(config, process) } else { join(config, &process) }
}

/// A name that tells nothing of the key, which may hold a secret; the hello has the key itself.
fn address(key: &str) -> Result<SocketAddr, Error> {
    // FNV-1a, twice from different starts.
    let hash =
        |start: u64| key.bytes().fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let name = format!("fanin-shm-{:016x}{:016x}", hash(0xcbf2_9ce4_8422_2325), hash(0x9e37_79b9_7f4a_7c15));
    SocketAddr::from_abstract_name(name).map_err(Error::system("name the meeting point"))
}

/// Local rank 0: takes everyone in, then makes the memory.
fn host(config: &Config, process: OwnedFd) -> Result<Shared, Error> {
    let deadline = Instant::now() + config.form_timeout;
    let listener = UnixListener::bind_addr(&address(&config.key)?)
        .map_err(Error::system("listen for the other local ranks (is there another local rank 0 of this job?)"))?;
    listener.set_nonblocking(true).map_err(Error::system("listen for the other local ranks"))?;
    let mut guests: Vec<Option<Guest>> = (0..config.local_size).map(|_| None).collect();
    while guests[1..].iter().any(Option::is_none) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let missing = (1..config.local_size).filter(|rank| guests[usize::from(*rank)].is_none()).collect();
            let error = Error::Missing { ranks: missing, waited: config.form_timeout };
            refuse_all(&guests, &error.to_string());
            return Err(error);
        }
        if !sys::is_readable(listener.as_fd(), left).map_err(Error::system("wait for the other local ranks"))? {
            continue;
        }
        let Ok((socket, _)) = listener.accept() else { continue };
        if let Err(error) = admit(config, socket, &mut guests) {
            refuse_all(&guests, &error.to_string());
            return Err(error);
        }
    }
    welcome(config, process, guests)
}

/// A rank that has come.
struct Guest {
    socket: UnixStream,
    process: OwnedFd,
}

/// Takes one connection in. Strangers are turned away; a rank that cannot be in this group is an error for all.
fn admit(config: &Config, socket: UnixStream, guests: &mut [Option<Guest>]) -> Result<(), Error> {
    if sys::peer_user(&socket).ok() != Some(sys::user()) {
        return Ok(());
    }
    let mut descriptors = Vec::new();
    let deadline = Instant::now() + HELLO_TIMEOUT;
    let Ok(hello) = receive(&socket, deadline, &mut descriptors) else { return Ok(()) };
    let own = Hello::new(config);
    let Some(theirs) = Hello::from_bytes(&hello).filter(|theirs| theirs.key == own.key) else {
        refuse(&socket, "this is another job, or another version of fanin");
        return Ok(());
    };
    let rank = theirs.rank;
    if theirs.settings != own.settings {
        let problem = format!("local rank {rank} has {}, local rank 0 has {}", theirs.words(), own.words());
        refuse(&socket, &problem);
        return Err(Error::Config(format!("settings differ: {problem}")));
    }
    let is_free = guests.get(usize::from(rank)).is_some_and(|guest| rank != 0 && guest.is_none());
    let Some(process) = descriptors.pop().filter(|_| is_free) else {
        refuse(&socket, &format!("local rank {rank} has come before, or is not below {}", config.local_size));
        return Ok(());
    };
    guests[usize::from(rank)] = Some(Guest { socket, process });
    Ok(())
}

/// Sends everyone what a group needs.
fn welcome(config: &Config, process: OwnedFd, guests: Vec<Option<Guest>>) -> Result<Shared, Error> {
    let file = match Shared::create(config) {
        Ok(file) => file,
        Err(error) => {
            refuse_all(&guests, &error.to_string());
            return Err(error);
        }
    };
    let (mut sockets, mut processes) = (Vec::new(), vec![process]);
    for guest in guests.into_iter().flatten() {
        sockets.push(guest.socket);
        processes.push(guest.process);
    }
    let descriptors: Vec<BorrowedFd<'_>> =
        std::iter::once(file.as_fd()).chain(processes.iter().map(AsFd::as_fd)).collect();
    let greetings: Vec<_> = sockets.iter().map(|socket| send(socket, &[WELCOME], &descriptors)).collect();
    let shared = Shared::new(config, file, processes)?;
    if let Some(index) = greetings.iter().position(Result::is_err) {
        let error = Error::PeerDied { rank: index as u16 + 1 };
        shared.abort(&error);
        return Err(error);
    }
    Ok(shared)
}

fn refuse(socket: &UnixStream, problem: &str) {
    // If it cannot be told, it finds its socket closed.
    let _ = send(socket, &[&[REFUSED], problem.as_bytes()].concat(), &[]);
}

fn refuse_all(guests: &[Option<Guest>], problem: &str) {
    guests.iter().flatten().for_each(|guest| refuse(&guest.socket, problem));
}

/// Any other rank: goes to local rank 0 and waits for its answer.
fn join(config: &Config, process: &OwnedFd) -> Result<Shared, Error> {
    let deadline = Instant::now() + config.form_timeout;
    let address = address(&config.key)?;
    let socket = loop {
        match UnixStream::connect_addr(&address) {
            Ok(socket) => break socket,
            Err(_) if Instant::now() < deadline => thread::sleep(RETRY),
            Err(_) => return Err(Error::Missing { ranks: vec![0], waited: config.form_timeout }),
        }
    };
    let peer = sys::peer_user(&socket).map_err(Error::system("see who local rank 0 is"))?;
    if peer != sys::user() {
        return Err(Error::Refused(format!("it runs as user {peer}, this rank as {}", sys::user())));
    }
    send(&socket, &Hello::new(config).to_bytes(), &[process.as_fd()]).map_err(Error::system("greet local rank 0"))?;
    let mut descriptors = Vec::new();
    let answer = receive(&socket, deadline + GRACE, &mut descriptors).map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => Error::Refused(format!("it still waits for others after {:?}", config.form_timeout)),
        _ => Error::Refused(format!("it gave up without a reason ({error})")),
    })?;
    match answer.split_first() {
        Some((&WELCOME, _)) if !descriptors.is_empty() => {
            let processes = descriptors.split_off(1);
            let file = descriptors.pop().expect("not empty");
            Shared::new(config, file, processes)
        }
        Some((_, problem)) => Err(Error::Refused(String::from_utf8_lossy(problem).into_owned())),
        None => Err(Error::Refused("it sent nothing".to_owned())),
    }
}

/// What must be equal on all ranks, besides the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Settings {
    local_size: u16,
    window_bytes: u64,
    depth: u64,
    has_uplink: bool,
}

/// A rank's first words.
struct Hello {
    rank: u16,
    settings: Settings,
    key: String,
}

impl Hello {
    fn new(config: &Config) -> Hello {
        let settings = Settings {
            local_size: config.local_size,
            window_bytes: config.window_bytes as u64,
            depth: config.depth as u64,
            has_uplink: config.has_uplink,
        };
        Hello { rank: config.local_rank, settings, key: config.key.clone() }
    }

    fn words(&self) -> String {
        let Settings { local_size, window_bytes, depth, has_uplink } = self.settings;
        format!("{local_size} ranks, {depth} windows of {window_bytes} bytes, uplink {has_uplink}")
    }

    fn to_bytes(&self) -> Vec<u8> {
        let Settings { local_size, window_bytes, depth, has_uplink } = self.settings;
        let numbers = [u64::from(self.rank), local_size.into(), window_bytes, depth, has_uplink.into()];
        MAGIC.iter().copied().chain(numbers.into_iter().flat_map(u64::to_ne_bytes)).chain(self.key.bytes()).collect()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Hello> {
        let (numbers, key) = bytes.strip_prefix(MAGIC)?.split_at_checked(40)?;
        let number = |index: usize| u64::from_ne_bytes(numbers[8 * index..][..8].try_into().expect("8 bytes"));
        let settings = Settings {
            local_size: number(1).try_into().ok()?,
            window_bytes: number(2),
            depth: number(3),
            has_uplink: number(4) != 0,
        };
        Some(Hello { rank: number(0).try_into().ok()?, settings, key: String::from_utf8(key.to_vec()).ok()? })
    }
}

/// Messages are a length and that many bytes.
fn send(socket: &UnixStream, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let message = &message[..message.len().min(MESSAGE_BYTES_MAX)];
    sys::send(socket, &[&(message.len() as u32).to_ne_bytes(), message].concat(), descriptors)
}

fn receive(socket: &UnixStream, deadline: Instant, descriptors: &mut Vec<OwnedFd>) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    fill(socket, deadline, &mut length, descriptors)?;
    let length = u32::from_ne_bytes(length) as usize;
    if length > MESSAGE_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut message = vec![0; length];
    fill(socket, deadline, &mut message, descriptors)?;
    Ok(message)
}

fn fill(
    socket: &UnixStream,
    deadline: Instant,
    mut bytes: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<()> {
    while !bytes.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if !sys::is_readable(socket.as_fd(), left)? {
            continue;
        }
        match sys::receive(socket, bytes, descriptors)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            received => bytes = &mut bytes[received..],
        }
    }
    Ok(())
}
