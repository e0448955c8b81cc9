//! The pods' network: an address of `10.A.0.0/16` for each pod, and where it is really listened to.
//!
//! The API server refuses loopback addresses in EndpointSlices and nobody on this machine owns `10.A.x.y`, so what a
//! pod with that address serves listens on `127.A.x.y`. The port is the pod's own, unless another program of this
//! machine listens on that port of *every* address, or it is one that only root may listen on; then another one is taken
//! and remembered here. Everything that
//! connects to a pod asks [`Network::reach`].

use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};

use anyhow::{Context as _, bail};
use parking_lot::Mutex;

/// Hosts 0 and 255 of each third octet are left out: they look like network and broadcast addresses to people.
const HOSTS: u32 = 254;

/// The third octet 0 belongs to the control plane's own programs.
const BLOCKS: u32 = 255;

/// The pods' addresses of one instance.
#[derive(Debug)]
pub struct Network {
    octet: u8,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Where the search for a free address goes on: an address that was just given back is used last, so that a client
    /// with a stale view meets nobody, as in most real networks, instead of a stranger.
    next: u32,
    used: HashSet<Ipv4Addr>,
    /// Ports of pods that could not be had on their own number.
    moved: HashMap<(Ipv4Addr, u16), u16>,
}

impl Network {
    /// The network `10.octet.0.0/16`.
    pub fn new(octet: u8) -> Self {
        Self { octet, state: Mutex::default() }
    }

    /// A free address. Give it back with [`Network::release`].
    ///
    /// # Errors
    /// When all of some 64,000 addresses are in use.
    pub fn allocate(&self) -> anyhow::Result<Ipv4Addr> {
        let mut state = self.state.lock();
        for _ in 0..BLOCKS * HOSTS {
            let index = state.next;
            state.next = (state.next + 1) % (BLOCKS * HOSTS);
            let address = Ipv4Addr::new(10, self.octet, (1 + index / HOSTS) as u8, (1 + index % HOSTS) as u8);
            if state.used.insert(address) {
                return Ok(address);
            }
        }
        bail!("every address of 10.{}.0.0/16 is in use", self.octet)
    }

    /// Gives an address back.
    pub fn release(&self, address: Ipv4Addr) {
        let mut state = self.state.lock();
        state.used.remove(&address);
        state.moved.retain(|(of, _), _| *of != address);
    }

    /// The loopback address that stands for a pod's address; other addresses stand for themselves.
    pub fn local(&self, address: Ipv4Addr) -> Ipv4Addr {
        match address.octets() {
            [10, octet, x, y] if octet == self.octet => Ipv4Addr::new(127, octet, x, y),
            _ => address,
        }
    }

    /// Where a connection to this address and port has to go.
    pub fn reach(&self, address: Ipv4Addr, port: u16) -> SocketAddr {
        let moved = self.state.lock().moved.get(&(address, port)).copied();
        SocketAddr::new(IpAddr::V4(self.local(address)), moved.unwrap_or(port))
    }

    /// Listens for a pod.
    ///
    /// # Errors
    /// When the pod itself listens there already, or the system refuses.
    pub fn listen(&self, address: Ipv4Addr, port: u16) -> anyhow::Result<TcpListener> {
        let local = self.local(address);
        let listener = match TcpListener::bind((local, port)) {
            // Taken on every address of the machine, or a port that only root may use.
            Err(error) if matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::PermissionDenied) => {
                let other = TcpListener::bind((local, 0)).with_context(|| format!("cannot listen on {local}"))?;
                let number = other.local_addr().context("a listener without an address")?.port();
                self.state.lock().moved.insert((address, port), number);
                other
            }
            other => {
                self.state.lock().moved.remove(&(address, port));
                other.with_context(|| format!("cannot listen on {local}:{port}"))?
            }
        };
        listener.set_nonblocking(true).context("cannot make a listener non-blocking")?;
        Ok(listener)
    }

    /// The address that a program of a pod has to listen on instead of `0.0.0.0:port`.
    ///
    /// # Errors
    /// As [`Network::listen`].
    pub fn listen_address(&self, address: Ipv4Addr, port: u16) -> anyhow::Result<SocketAddr> {
        self.listen(address, port)?.local_addr().context("a listener without an address")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_unique_until_given_back_and_then_used_last() {
        let network = Network::new(7);
        let first = network.allocate().unwrap();
        assert_eq!(first, Ipv4Addr::new(10, 7, 1, 1));
        let second = network.allocate().unwrap();
        assert_ne!(first, second);
        network.release(first);
        assert_ne!(network.allocate().unwrap(), first, "a fresh address comes before a used one");
    }

    #[test]
    fn every_address_is_handed_out_before_it_runs_out() {
        let network = Network::new(7);
        let all: HashSet<Ipv4Addr> = (0..BLOCKS * HOSTS).map(|_| network.allocate().unwrap()).collect();
        assert_eq!(all.len(), (BLOCKS * HOSTS) as usize);
        assert!(all.iter().all(|address| address.octets()[2] > 0 && address.octets()[3] > 0));
        assert!(network.allocate().is_err());
        network.release(Ipv4Addr::new(10, 7, 3, 3));
        assert_eq!(network.allocate().unwrap(), Ipv4Addr::new(10, 7, 3, 3));
    }

    #[test]
    fn a_pod_is_reached_on_its_loopback_twin_and_others_directly() {
        let network = Network::new(7);
        for (address, expected) in
            [([10, 7, 1, 2], [127, 7, 1, 2]), ([10, 8, 1, 2], [10, 8, 1, 2]), ([127, 0, 0, 1], [127, 0, 0, 1])]
        {
            let reached = network.reach(Ipv4Addr::from(address), 8080);
            assert_eq!(reached, SocketAddr::from((expected, 8080)));
        }
    }

    #[test]
    fn a_port_taken_on_every_address_of_the_machine_is_moved() {
        let taken = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let network = Network::new(251);
        let pod = network.allocate().unwrap();
        let listener = network.listen(pod, port).unwrap();
        let reached = network.reach(pod, port);
        assert_eq!(reached, listener.local_addr().unwrap());
        assert_ne!(reached.port(), port);
        network.release(pod);
        assert_eq!(network.reach(pod, port).port(), port, "the next pod with this address starts afresh");
    }
}
