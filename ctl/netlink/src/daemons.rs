use std::net::{IpAddr, Ipv4Addr};

use crate::{Daemon, DaemonState, Errno};

/// The synchronisation daemons that are started, at most one of each kind.
#[derive(Clone, Debug, Default)]
pub struct Daemons {
    list: Vec<Daemon>,
}

/// Least size of what a backup receives; as the kernel has it.
const LEAST_BACKUP: u16 = 1024;
const GROUP: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 81);
const PORT: u16 = 8848;
/// Bytes of the UDP header.
const UDP: u32 = 8;

impl Daemons {
    /// All of them, the master first.
    pub fn all(&self) -> Vec<Daemon> {
        self.list.clone()
    }

    /// Notes one that is started, with the kernel's defaults for what it leaves open. `mtu` is that of its interface, if there is such
    /// an interface.
    ///
    /// # Errors
    /// `EEXIST` where one of its kind is there, `ENODEV` without its interface, `EINVAL` for a group that is not multicast.
    pub fn start(&mut self, daemon: &Daemon, mtu: Option<u32>) -> Result<(), Errno> {
        if self.list.iter().any(|d| d.state == daemon.state) {
            return Err(Errno::EEXIST);
        }
        let mtu = mtu.ok_or(Errno::ENODEV)?;
        let group = daemon.group.unwrap_or(IpAddr::V4(GROUP));
        if !group.is_multicast() {
            return Err(Errno::EINVAL);
        }
        let mut d = Daemon { group: Some(group), ..daemon.clone() };
        let headers = UDP + if group.is_ipv6() { 40 } else { 20 };
        d.maxlen = match (d.maxlen, d.state) {
            (0, _) => u16::try_from(mtu.saturating_sub(headers)).unwrap_or(u16::MAX),
            (n, DaemonState::Backup) => n.max(LEAST_BACKUP),
            (n, DaemonState::Master) => n,
        };
        if d.port == 0 {
            d.port = PORT;
        }
        d.ttl = d.ttl.max(1);
        self.list.push(d);
        self.list.sort_by_key(|d| d.state);
        Ok(())
    }

    /// One is stopped.
    ///
    /// # Errors
    /// `ESRCH` where none of its kind is there.
    pub fn stop(&mut self, state: DaemonState) -> Result<(), Errno> {
        let before = self.list.len();
        self.list.retain(|d| d.state != state);
        if self.list.len() == before { Err(Errno::ESRCH) } else { Ok(()) }
    }
}
