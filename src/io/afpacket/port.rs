//! A port: an interface with the sockets and the classifier on it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use aya::programs::Program;

use super::AfPacketConfig;
use super::socket::{PortPlan, PortSockets};
use crate::io::attach::{Attachment, Ingress};
use crate::io::netdev::{self, PortLock};
use crate::io::rings::socket::bound_to;
use crate::io::rings::supervisor::{Hold, Holder};
use crate::io::{BpfTables, SetupError};
use crate::route::PortId;

/// A port and what holds it on its interface.
pub(super) struct PacketPort {
    id: PortId,
    name: String,
    config: Arc<AfPacketConfig>,
    tables: Arc<BpfTables>,
    attached: Option<Attached>,
}

struct Attached {
    index: u32,
    classifier: Attachment,
    probe: OwnedFd,
    lock: Option<PortLock>,
}

impl PacketPort {
    pub(super) fn new(
        id: PortId,
        name: &str,
        config: Arc<AfPacketConfig>,
        tables: Arc<BpfTables>,
    ) -> PacketPort {
        PacketPort { id, name: name.into(), config, tables, attached: None }
    }

    /// Sets it up; the sockets are one set for each worker.
    pub(super) fn attach(&mut self) -> Result<Vec<PortSockets>, SetupError> {
        let index = netdev::ethernet_index(&self.name)?;
        // of a daemon that is about to hand over: when it has ended
        let lock = match PortLock::take(&self.name, index) {
            Err(SetupError::InUse(_)) if self.tables.is_successor() => None,
            lock => Some(lock?),
        };
        let filter = filter_fd(&self.tables)?;
        let plan = PortPlan {
            name: &self.name,
            index,
            mtu: netdev::mtu(&self.name)?,
            workers: self.config.workers,
            ring: self.config.ring,
            filter: filter.as_fd(),
            magic: self.tables.magic(),
        };
        let set = plan.make()?;
        let ingress = if self.tables.tier().is_some() { Ingress::Forward } else { Ingress::Take };
        let classifier = Attachment::new(&self.tables, &self.name, index, self.config.hook, ingress)?;
        if let Some(tier) = self.tables.tier() {
            tier.set_port(self.id, index)?;
        }
        if let Some(plane) = self.tables.plane() {
            // what was pinned for an interface of this name that is gone
            plane.sweep();
        }
        self.attached = Some(Attached { index, classifier, probe: set.probe, lock });
        Ok(set.sockets)
    }

    /// How its classifier is attached; none while the interface is gone.
    pub(super) fn mode(&self) -> Option<&'static str> {
        self.attached.as_ref().map(|a| a.classifier.hook())
    }
}

impl Holder for PacketPort {
    type Sockets = PortSockets;

    fn id(&self) -> PortId {
        self.id
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn is_attached(&self) -> bool {
        self.attached.is_some()
    }

    fn look(&mut self) -> Hold {
        if let Some(attached) = self.attached.as_mut().filter(|a| a.lock.is_none()) {
            attached.lock = PortLock::take(&self.name, attached.index).ok();
        }
        let holds = self.attached.as_ref().is_some_and(|a| {
            netdev::index(&self.name) == Some(a.index) && bound_to(a.probe.as_fd()) == Some(a.index)
        });
        if holds { Hold::Fast } else { Hold::Gone }
    }

    fn set_up(&mut self) -> Result<Vec<PortSockets>, SetupError> {
        self.attach()
    }

    fn loosen(&mut self) {
        self.detach();
    }

    fn detach(&mut self) {
        if let (Some(tier), Some(attached)) = (self.tables.tier(), &self.attached)
            && !self.tables.goes_on(&self.name, attached.index)
            && let Err(e) = tier.set_port(self.id, 0)
        {
            // packets go out by an interface that is gone, where they are lost as they would be anyway
            tracing::warn!("interface {}: {e}", self.name);
        }
        self.attached = None;
    }

    fn exists(&self) -> bool {
        netdev::index(&self.name).is_some()
    }
}

/// A duplicate of the socket filter's descriptor.
fn filter_fd(tables: &BpfTables) -> Result<OwnedFd, SetupError> {
    let programs = tables.programs();
    let name = if tables.tier().is_some() { "lvsd_tier_ring" } else { "lvsd_ring" };
    let missing = || SetupError::Bpf { what: format!("BPF program {name}"), reason: "not loaded".into() };
    let Some(Program::SocketFilter(p)) = programs.program(name) else {
        return Err(missing());
    };
    let fd = p.fd().map_err(|_| missing())?;
    fd.as_fd().try_clone_to_owned().map_err(|e| SetupError::os("duplicating a program's descriptor", "", e))
}
