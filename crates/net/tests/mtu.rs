//! A real path with MTU 1500: two network namespaces of this test's own joined by a veth pair. Needs root.

mod common;

use std::process::Command;
use std::time::{Duration, Instant};

use common::{datagrams, port_with};
use fanin_net::{NetError, Options, SendBatch, UdpPort};

const INSIDE: &str = "FANIN_NET_TEST_INSIDE_NAMESPACE";

/// Two namespaces, removed when dropped (and with them the veth pair).
struct Namespaces([String; 2]);

impl Namespaces {
    fn new() -> Result<Self, String> {
        let id = std::process::id();
        let names = Self([format!("fanin-mtu-a-{id}"), format!("fanin-mtu-b-{id}")]);
        let [a, b] = &names.0;
        ip(&format!("netns add {a}"))?;
        ip(&format!("netns add {b}"))?;
        ip(&format!("link add v0 netns {a} mtu 1500 type veth peer name v0 netns {b} mtu 1500"))?;
        for (namespace, host) in [(a, 1), (b, 2)] {
            ip(&format!("-n {namespace} addr add 10.91.7.{host}/24 dev v0"))?;
            ip(&format!("-n {namespace} addr add fd91:7::{host}/64 dev v0 nodad"))?;
            ip(&format!("-n {namespace} link set v0 up"))?;
            ip(&format!("-n {namespace} link set lo up"))?;
        }
        Ok(names)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).output().map_err(|error| format!("ip: {error}"))?;
    let error = || format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim());
    output.status.success().then_some(()).ok_or_else(error)
}

#[test]
fn the_path_mtu_is_an_error_with_numbers_and_offload_survives_it() {
    let namespaces = match Namespaces::new() {
        Ok(namespaces) => namespaces,
        Err(reason) => {
            eprintln!("SKIPPED: network namespaces cannot be made here ({reason}); run as root with iproute2");
            return;
        }
    };
    let output = Command::new("ip")
        .args(["netns", "exec", &namespaces.0[0]])
        .arg(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "inside_the_namespace", "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("path MTU 1500 bytes leaves 1472"), "{text}");
    assert!(text.contains("gave up"), "{text}");
}

#[test]
#[ignore = "runs inside the namespace that the test above makes"]
fn inside_the_namespace() {
    if std::env::var_os(INSIDE).is_none() {
        eprintln!("SKIPPED: run the_path_mtu_is_an_error_with_numbers_and_offload_survives_it instead");
        return;
    }
    for (local, peer, payload_max) in
        [("10.91.7.1:0", "10.91.7.2:4000", 1472), ("[fd91:7::1]:0", "[fd91:7::2]:4000", 1452)]
    {
        let peer = peer.parse().unwrap();
        for connected in [false, true] {
            let mut port = UdpPort::bind(local.parse().unwrap(), &Options::default()).unwrap();
            assert_eq!(port.path_mtu(peer).unwrap(), 1500);
            assert_eq!(port.max_payload(peer).unwrap(), payload_max);
            if connected {
                port.connect(peer).unwrap();
            }
            assert_limit(&mut port, peer, payload_max);
        }
    }
    assert_unreachable();
    assert_gives_up_in_time();
}

/// On a link of 1 Mbit/s the kernel has room for a part only: the rest is given up after the bounded wait.
fn assert_gives_up_in_time() {
    let shaping = "qdisc add dev v0 root tbf rate 1mbit burst 64k limit 4mb";
    assert!(Command::new("tc").args(shaping.split(' ')).status().unwrap().success());
    let send_wait_max = Duration::from_millis(30);
    let options = Options { send_buffer_bytes: 64 << 10, send_wait_max, ..Options::default() };
    let mut port = UdpPort::bind("10.91.7.1:0".parse().unwrap(), &options).unwrap();
    let begin = Instant::now();
    let sent = port.send(&batch_of(1064, 240), "10.91.7.2:4000".parse().unwrap()).unwrap();
    let took = begin.elapsed();
    assert!(sent.datagrams > 0 && sent.not_sent > 0 && sent.datagrams + sent.not_sent == 240, "{sent:?}");
    assert!(took >= send_wait_max && took < Duration::from_secs(2), "took {took:?}");
    let counters = port.counters();
    assert_eq!((counters.datagrams_sent, counters.send_gave_up), (sent.datagrams as u64, sent.not_sent as u64));
    assert!(counters.send_would_block > 0 && counters.send_would_block < 1000, "{counters:?}");
    println!("gave up {} of 240 datagrams after {took:?}", sent.not_sent);
}

/// Alone and in a super-packet: `payload_max` bytes go, one more is refused by name, and offload stays on.
fn assert_limit(port: &mut UdpPort, peer: std::net::SocketAddr, payload_max: usize) {
    for count in [1, 20] {
        let sent = port.send(&batch_of(payload_max, count), peer).unwrap();
        assert_eq!(sent.datagrams, count);
        let error = port.send(&batch_of(payload_max + 1, count), peer).unwrap_err();
        println!("{error}");
        let NetError::DatagramTooLong { destination, datagram_bytes, path_mtu_bytes, payload_bytes_max } = error else {
            panic!("another error: {error}");
        };
        assert_eq!((destination, datagram_bytes), (peer, payload_max + 1));
        assert_eq!((path_mtu_bytes, payload_bytes_max), (1500, payload_max));
    }
    assert_eq!((port.counters().gso_fallbacks, port.counters().super_packets_sent), (0, 1));
}

fn assert_unreachable() {
    let mut port = UdpPort::bind("10.91.7.1:0".parse().unwrap(), &Options::default()).unwrap();
    let error = port.send(&batch_of(100, 1), "192.0.2.1:4000".parse().unwrap()).unwrap_err();
    assert!(matches!(error, NetError::Unreachable { .. }), "{error}");
}

fn batch_of(bytes: usize, count: usize) -> SendBatch {
    let mut batch = SendBatch::new();
    for datagram in datagrams(&vec![bytes; count]) {
        batch.push(&datagram).unwrap();
    }
    batch
}

#[test]
fn without_mtu_discovery_loopback_still_carries_the_longest_datagram() {
    let options = Options { mtu_discovery: false, ..Options::default() };
    let (mut sender, mut receiver) = (port_with(&options), port_with(&options));
    let sent = datagrams(&[fanin_net::DATAGRAM_BYTES_MAX]);
    common::send_all(&mut sender, &sent, receiver.local_addr());
    assert!(common::receive_payloads(&mut receiver, 1) == sent);
}
