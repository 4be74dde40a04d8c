//! A service of test servers, which tells its scheduler of every change as the director does.
#![allow(dead_code, reason = "each test program uses a part of it")]

use schedulers::{CreateError, Flow, Load, Options, Scheduler, Servers, create};
use std::net::{IpAddr, SocketAddr};

/// One server of the pool.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) at: SocketAddr,
    pub(crate) load: Load,
    pub(crate) last_weight: u32,
    /// Upper and lower threshold; 0: none.
    pub(crate) upper: u32,
    pub(crate) lower: u32,
}

/// Servers, the newest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pool(pub(crate) Vec<Server>);

impl Servers for Pool {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn load(&self, index: usize) -> Load {
        self.0[index].load
    }

    fn identity(&self, index: usize) -> (IpAddr, u16) {
        (self.0[index].at.ip(), self.0[index].at.port())
    }

    fn last_weight(&self, index: usize) -> u32 {
        self.0[index].last_weight
    }
}

pub(crate) struct Service {
    pub(crate) name: String,
    pub(crate) pool: Pool,
    pub(crate) scheduler: Box<dyn Scheduler>,
}

impl Service {
    pub(crate) fn new(name: &str, options: &Options) -> Result<Self, CreateError> {
        let pool = Pool::default();
        Ok(Service { name: name.into(), scheduler: create(name, options, &pool)?, pool })
    }

    /// A service of servers 10.1.0.1:80, 10.1.0.2:80, ... added in this order.
    pub(crate) fn with(name: &str, options: &Options, weights: &[u32]) -> Self {
        let mut service = Service::new(name, options).unwrap();
        for (k, weight) in (1..).zip(weights) {
            service.add(server(k), *weight);
        }
        service
    }

    pub(crate) fn add(&mut self, at: SocketAddr, weight: u32) {
        let load = Load { weight, active: 0, inactive: 0, overloaded: false };
        self.pool.0.insert(0, Server { at, load, last_weight: weight, upper: 0, lower: 0 });
        self.scheduler.added(&self.pool, 0);
    }

    pub(crate) fn remove(&mut self, at: SocketAddr) {
        let index = self.index(at);
        self.pool.0.remove(index);
        self.scheduler.removed(&self.pool, index);
    }

    pub(crate) fn set_weight(&mut self, at: SocketAddr, weight: u32) {
        let index = self.index(at);
        let server = &mut self.pool.0[index];
        server.load.weight = weight;
        if weight != 0 {
            server.last_weight = weight;
        }
        self.scheduler.changed(&self.pool, index);
    }

    /// As `ipvsadm -E`: the same scheduler goes on as it is.
    pub(crate) fn switch(&mut self, name: &str, options: &Options) -> Result<(), CreateError> {
        if name != self.name {
            self.scheduler = create(name, options, &self.pool)?;
            self.name = name.into();
        }
        Ok(())
    }

    pub(crate) fn server(&mut self, at: SocketAddr) -> &mut Server {
        let index = self.index(at);
        &mut self.pool.0[index]
    }

    pub(crate) fn index(&self, at: SocketAddr) -> usize {
        self.pool.0.iter().position(|server| server.at == at).unwrap_or_else(|| panic!("no server {at}"))
    }

    pub(crate) fn pick(&mut self, flow: &Flow) -> Option<SocketAddr> {
        self.scheduler.pick(&self.pool, flow).map(|index| self.pool.0[index].at)
    }

    pub(crate) fn picks(&mut self, flows: &[Flow]) -> Vec<Option<SocketAddr>> {
        flows.iter().map(|flow| self.pick(flow)).collect()
    }
}

/// Server k: 10.1.0.k:80, or for larger k on.
pub(crate) fn server(k: u32) -> SocketAddr {
    (std::net::Ipv4Addr::from_bits(0x0a01_0000 + k), 80).into()
}

/// A connection from client number `client` and port `port` to 10.0.0.1:80.
pub(crate) fn flow(client: u32, port: u16) -> Flow {
    Flow {
        client: std::net::Ipv4Addr::from_bits(0x0a02_0000 + client).into(),
        client_port: port,
        virt: std::net::Ipv4Addr::new(10, 0, 0, 1).into(),
        virt_port: 80,
    }
}

/// `count` connections of as many clients.
pub(crate) fn flows(count: u32) -> Vec<Flow> {
    (0..count).map(|i| flow(i, (1024 + i * 31 % 60_000) as u16)).collect()
}
