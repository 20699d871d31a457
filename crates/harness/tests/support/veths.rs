//! A switch's network namespace and some workers', joined by veths.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Removed when dropped.
pub struct Veths {
    prefix: String,
    count: u16,
    /// Of the data plane; for whoever builds it to set.
    pub port: u16,
}

impl Veths {
    /// `None`, and a line that says why, without root.
    pub fn build(count: u16) -> Option<Veths> {
        if std::fs::metadata("/proc/self").expect("Linux").uid() != 0 {
            println!("SKIPPED: network namespaces need root");
            return None;
        }
        // Tests run at once, on threads of their own.
        let thread = std::thread::current().id();
        let digits: String = format!("{thread:?}").chars().filter(char::is_ascii_digit).collect();
        let veths = Veths { prefix: format!("vectors-{}-{digits}", std::process::id()), count, port: 0 };
        let switch = veths.switch();
        ip(&["netns", "add", &switch]);
        ip(&["-n", &switch, "link", "set", "lo", "up"]);
        for index in 0..count {
            let (worker, device, port) = (veths.worker(index), format!("w{index}"), format!("s{index}"));
            ip(&["netns", "add", &worker]);
            let pair = ["link", "add", &device, "netns", &worker, "type", "veth", "peer", "name", &port];
            ip(&[&pair[..], &["netns", &switch]].concat());
            ip(&["-n", &worker, "addr", "add", &format!("{}/24", own_address(index)), "dev", &device]);
            ip(&["-n", &switch, "addr", "add", &format!("{}/24", switch_address(index)), "dev", &port]);
            ip(&["-n", &worker, "link", "set", &device, "up"]);
            ip(&["-n", &switch, "link", "set", &port, "up"]);
            inside(&worker, move || fanin_net::set_receive_offload(&device, true)).expect("receive offload");
        }
        Some(veths)
    }

    /// The switch's ends.
    pub fn interfaces(&self) -> Vec<String> {
        (0..self.count).map(|index| format!("s{index}")).collect()
    }

    /// Runs a closure in the switch's namespace.
    pub fn at_switch<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        inside(&self.switch(), work)
    }

    /// A rank's socket, made from its own address and the switch's as it knows it.
    pub fn socket(&self, rank: u16, make: fn(&str, SocketAddr) -> UdpSocket) -> UdpSocket {
        let (index, port) = (rank % self.count, self.port);
        inside(&self.worker(index), move || {
            let switch = SocketAddr::new(switch_address(index).parse().expect("an address"), port);
            make(&own_address(index), switch)
        })
    }

    fn switch(&self) -> String {
        format!("{}-s", self.prefix)
    }

    fn worker(&self, index: u16) -> String {
        format!("{}-w{index}", self.prefix)
    }
}

impl Drop for Veths {
    fn drop(&mut self) {
        let names = (0..self.count).map(|index| self.worker(index)).chain([self.switch()]);
        for name in names {
            let _ = Command::new("ip").args(["netns", "delete", &name]).output();
        }
    }
}

fn own_address(index: u16) -> String {
    format!("10.79.{index}.1")
}

fn switch_address(index: u16) -> String {
    format!("10.79.{index}.254")
}

fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output().expect("iproute2 is installed");
    assert!(output.status.success(), "ip {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A thread of its own: a namespace is a property of the thread, and this one stays there.
fn inside<T: Send + 'static>(namespace: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let file = std::fs::File::open(format!("/run/netns/{namespace}")).expect("a namespace of ours");
    let thread = std::thread::spawn(move || {
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).expect("root may enter it");
        work()
    });
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
