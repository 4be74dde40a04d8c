//! The decapsulator, loaded onto an interface so that it stays there without a process.
//!
//! Where a BPF file system is at hand, a BPF link holds the program, and a file (a pin) holds the link: nobody else can
//! replace the program by accident. Elsewhere the program is set by rtnetlink, which needs nothing to hold it.

use std::ffi::CString;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use aya::maps::{HashMap, Map, MapData, MapError};
use aya::programs::links::{FdLink, LinkType, PinnedLink};
use aya::programs::xdp::{XdpLink, XdpMode};
use aya::programs::{Program, ProgramError, ProgramInfo, Xdp, loaded_links, loaded_programs};
use aya::{Ebpf, EbpfLoader};
use rustix::io::Errno;

use crate::error::{Error, os_error};
use crate::machine::{AtXdp, Remedy};
use crate::rtnl::{Attached, Interface, Rtnl, XdpKind};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/decap.bpf.o"));

/// The program's name, by which we know our own.
const PROGRAM: &str = "lvsd_decap";
/// Its table of addresses.
const TABLE: &str = "own_addresses";
/// Addresses that an interface may have: the size of the program's table.
pub const MAX_ADDRESSES: usize = 256;
/// Magic number of a BPF file system (linux/magic.h).
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;
/// How often somebody may remove the directory under our hands.
const HOLD_TRIES: usize = 16;
/// How long a link may need to let go after its last holder.
const PATIENCE: Duration = Duration::from_secs(2);

/// BPF links that are looked at, so that the look ends.
const LINKS: usize = 1 << 16;

/// What holds a loaded decapsulator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Held {
    /// A link, pinned here.
    Pin(PathBuf),
    /// The interface itself.
    Interface,
}

/// A decapsulator that was loaded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loaded {
    /// Where it runs.
    pub kind: XdpKind,
    /// Packets to these are decapsulated: the interface's addresses.
    pub addresses: Vec<IpAddr>,
    /// What holds it.
    pub held: Held,
    /// Whether one was there, which this one has replaced without a gap.
    pub replaced: bool,
}

/// Loads the decapsulator onto the interface `dev`, in the driver if that can do it. One that is there already is replaced,
/// so that it knows the interface's present addresses.
///
/// # Errors
///
/// Every variant of [`Error`] is possible; nothing has changed then.
pub fn load(dev: &str, pin_dir: &Path) -> Result<Loaded, Error> {
    let at = At::find(dev, pin_dir)?;
    let ours = at.ours()?;
    let addresses =
        at.rtnl.addresses(at.interface.index).map_err(|e| at.failed("reading its addresses", e))?;
    if addresses.is_empty() {
        return Err(Error::NoAddress(dev.into()));
    }
    if addresses.len() > MAX_ADDRESSES {
        return Err(Error::TooManyAddresses {
            dev: dev.into(),
            count: addresses.len(),
            limit: MAX_ADDRESSES,
        });
    }
    let mut ebpf = prepare(&addresses)?;
    let program = program(&mut ebpf)?;
    let (kind, held) = match ours {
        Some(ours) => (ours.attached.kind, at.replace(program, ours)?),
        None => at.attach(program)?,
    };
    Ok(Loaded { kind, addresses, held, replaced: at.had_ours() })
}

/// Takes the decapsulator from the interface `dev`; false where there was none. Programs of others are left alone.
///
/// # Errors
///
/// [`Error::NoSuchInterface`], [`Error::ForeignLink`], [`Error::Permission`], [`Error::Os`], [`Error::Bpf`].
pub fn unload(dev: &str, pin_dir: &Path) -> Result<bool, Error> {
    let at = At::find(dev, pin_dir)?;
    let Some(ours) = at.programs()?.into_iter().find(Present::is_ours) else { return Ok(false) };
    match at.pinned(&ours)? {
        Some(pinned) => {
            drop(pinned.unpin().map_err(|e| Error::os(at.pin.display().to_string(), e))?);
            at.until_gone(ours.attached.id)?;
            // Other interfaces' pins may be in it, which is no error.
            let _ = fs::remove_dir(pin_dir);
        }
        None => {
            let old = ours.info.fd().map_err(|e| at.bpf("its program", &e))?;
            at.rtnl
                .clear_xdp(at.interface.index, ours.attached.kind, old.as_fd())
                .map_err(|e| at.link_in_the_way("removing the program", e))?;
        }
    }
    Ok(true)
}

/// A program on the interface with what the kernel knows of it.
struct Present {
    attached: Attached,
    info: ProgramInfo,
}

impl Present {
    fn is_ours(&self) -> bool {
        self.info.name_as_str() == Some(PROGRAM)
    }

    /// As iproute2 calls the way it runs.
    fn word(&self) -> &'static str {
        match self.attached.kind {
            XdpKind::Native => "xdpdrv",
            XdpKind::Generic => "xdpgeneric",
            XdpKind::Offloaded => "xdpoffload",
        }
    }

    fn describe(&self) -> String {
        format!("`{}', id {}, {}", self.info.name_as_str().unwrap_or_default(), self.attached.id, self.word())
    }

    fn remedy(&self) -> Remedy {
        Remedy { word: self.word(), by_link: held_by_link(self.attached.id) }
    }

    /// The addresses in our program's table.
    fn known(&self, what: &str) -> Result<Vec<IpAddr>, Error> {
        let map_failed = |e: MapError| Error::bpf(what, &e);
        let ids = self.info.map_ids().map_err(|e| Error::bpf(what, &e))?.unwrap_or_default();
        let mut known = Vec::new();
        for id in ids {
            let map = MapData::from_id(id).map_err(map_failed)?;
            if map.info().map_err(map_failed)?.name_as_str() != Some(TABLE) {
                continue;
            }
            let map: HashMap<MapData, [u8; 20], u32> =
                HashMap::try_from(Map::HashMap(map)).map_err(map_failed)?;
            for key in map.keys() {
                known.extend(address(key.map_err(map_failed)?));
            }
        }
        Ok(known)
    }
}

/// What is at an interface's XDP hook, of which rtnetlink has told the numbers.
pub(crate) fn look(dev: &str, attached: &[Attached]) -> Result<AtXdp, Error> {
    let found =
        present(attached).map_err(|e| Error::bpf(format!("interface {dev}: listing BPF programs"), &e))?;
    let Some(first) = found.first() else { return Ok(AtXdp::Nothing) };
    if first.is_ours() {
        return first.known(&format!("interface {dev}: its decapsulator's addresses")).map(AtXdp::Decap);
    }
    Ok(AtXdp::Other { program: first.describe(), remedy: first.remedy() })
}

/// Whether a BPF link holds a program; None where the kernel does not tell.
fn held_by_link(program: u32) -> Option<bool> {
    let mut all_seen = true;
    for link in loaded_links().take(LINKS) {
        match link {
            Ok(link) if link.program_id() == program && matches!(link.link_type(), Ok(LinkType::Xdp)) => {
                return Some(true);
            }
            Ok(_) => {}
            // gone meanwhile
            Err(e) if os_error(&e) == Some(Errno::NOENT) => {}
            // That takes CAP_SYS_ADMIN.
            Err(_) => all_seen = false,
        }
    }
    all_seen.then_some(false)
}

fn present(attached: &[Attached]) -> Result<Vec<Present>, ProgramError> {
    let mut found = Vec::new();
    if attached.is_empty() {
        return Ok(found);
    }
    for info in loaded_programs() {
        let info = match info {
            Ok(info) => info,
            // unloaded while we went through the list
            Err(e) if os_error(&e) == Some(Errno::NOENT) => continue,
            Err(e) => return Err(e),
        };
        if let Some(&attached) = attached.iter().find(|a| a.id == info.id()) {
            found.push(Present { attached, info });
        }
    }
    Ok(found)
}

/// An interface and where its link would be pinned.
struct At {
    rtnl: Rtnl,
    dev: String,
    interface: Interface,
    pin_dir: PathBuf,
    pin: PathBuf,
}

/// Keeps the directory for pins: who takes the last pin away, for another interface, removes it while it is empty.
struct Hold(PathBuf);

impl Hold {
    fn take(pin_dir: &Path) -> Result<Hold, Error> {
        let place = pin_dir.join(format!("hold-{}", std::process::id()));
        let mut made = fs::create_dir_all(&place);
        for _ in 0..HOLD_TRIES {
            match made {
                // removed between its making and that of what is in it
                Err(e) if e.kind() == io::ErrorKind::NotFound => made = fs::create_dir_all(&place),
                _ => break,
            }
        }
        made.map_err(|e| Error::os(place.display().to_string(), e))?;
        Ok(Hold(place))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // an empty directory that stays is no harm
        let _ = fs::remove_dir(&self.0);
    }
}

impl At {
    fn find(dev: &str, pin_dir: &Path) -> Result<At, Error> {
        let rtnl = Rtnl::open().map_err(|e| Error::os("rtnetlink socket", e))?;
        let interface = rtnl.interface(dev).map_err(|e| match e {
            // too long a name is out of range, an empty one is invalid
            Errno::NODEV | Errno::RANGE | Errno::INVAL => Error::NoSuchInterface(dev.into()),
            e => Error::os(format!("interface {dev}"), e),
        })?;
        // The file system knows nothing of network namespaces, and takes no dots: so numbers, not the name.
        let namespace = rustix::fs::stat("/proc/thread-self/ns/net")
            .map_err(|e| Error::os("/proc/thread-self/ns/net", e))?
            .st_ino;
        let pin = pin_dir.join(format!("decap-{namespace}-{}", interface.index));
        Ok(At { rtnl, dev: dev.into(), interface, pin_dir: pin_dir.into(), pin })
    }

    fn failed(&self, what: &str, e: Errno) -> Error {
        Error::os(format!("interface {}: {what}", self.dev), e)
    }

    fn bpf(&self, what: &str, e: &(dyn std::error::Error + 'static)) -> Error {
        Error::bpf(format!("interface {}: {what}", self.dev), e)
    }

    /// A program that rtnetlink may not touch is held by a link, and not by ours.
    fn link_in_the_way(&self, what: &str, e: Errno) -> Error {
        if e == Errno::BUSY {
            return Error::ForeignLink { dev: self.dev.clone(), pin_dir: self.pin_dir.clone() };
        }
        self.failed(what, e)
    }

    /// What is on the interface.
    fn programs(&self) -> Result<Vec<Present>, Error> {
        present(&self.interface.xdp).map_err(|e| self.bpf("listing BPF programs", &e))
    }

    /// Our program, if it is there; an error if another one is.
    fn ours(&self) -> Result<Option<Present>, Error> {
        let mut programs = self.programs()?;
        if let Some(other) = programs.iter().find(|p| !p.is_ours()) {
            return Err(Error::OtherProgram {
                program: other.describe(),
                remedy: other.remedy().sentence(&self.dev),
                dev: self.dev.clone(),
            });
        }
        Ok(programs.pop())
    }

    fn had_ours(&self) -> bool {
        !self.interface.xdp.is_empty()
    }

    /// The pinned link that holds this program; None where it is held otherwise, and the pin, if any, is of the past.
    fn pinned(&self, ours: &Present) -> Result<Option<PinnedLink>, Error> {
        // A name that is no C string cannot be one of a file.
        if !self.pin.exists() || CString::new(self.pin.as_os_str().as_encoded_bytes()).is_err() {
            return Ok(None);
        }
        let pinned =
            PinnedLink::from_pin(&self.pin).map_err(|e| Error::bpf(self.pin.display().to_string(), &e))?;
        let link = FdLink::from(pinned);
        let info = link.info().map_err(|e| Error::bpf(self.pin.display().to_string(), &e))?;
        if info.program_id() != ours.attached.id {
            return Ok(None);
        }
        let again =
            PinnedLink::from_pin(&self.pin).map_err(|e| Error::bpf(self.pin.display().to_string(), &e))?;
        Ok(Some(again))
    }

    /// Puts a new program in the place of ours.
    fn replace(&self, program: &mut Xdp, ours: Present) -> Result<Held, Error> {
        if let Some(pinned) = self.pinned(&ours)? {
            // The file goes on holding the link; what we have is another handle of it.
            let link = XdpLink::try_from(FdLink::from(pinned)).map_err(|e| self.bpf("its link", &e))?;
            program.attach_to_link(link).map_err(|e| self.bpf("replacing the program", &e))?;
            return Ok(Held::Pin(self.pin.clone()));
        }
        let old = ours.info.fd().map_err(|e| self.bpf("its program", &e))?;
        let new = program.fd().map_err(|e| self.bpf("the program", &e))?;
        self.rtnl
            .set_xdp(self.interface.index, ours.attached.kind, new.as_fd(), Some(old.as_fd()))
            .map_err(|e| self.link_in_the_way("replacing the program", e))?;
        Ok(Held::Interface)
    }

    /// Attaches it where there is none: in the driver, else before the stack.
    fn attach(&self, program: &mut Xdp) -> Result<(XdpKind, Held), Error> {
        let pins = self.pins_possible()?;
        let mut refusal = Errno::OPNOTSUPP;
        for kind in [XdpKind::Native, XdpKind::Generic] {
            let tried = if pins {
                self.attach_pinned(program, kind)?
            } else {
                self.attach_by_netlink(program, kind)?
            };
            match tried {
                Ok(held) => return Ok((kind, held)),
                Err(e @ (Errno::BUSY | Errno::EXIST)) => {
                    // came between our look and this
                    return Err(Error::OtherProgram {
                        program: e.to_string(),
                        remedy: Remedy { word: "xdp", by_link: None }.sentence(&self.dev),
                        dev: self.dev.clone(),
                    });
                }
                Err(e @ (Errno::PERM | Errno::ACCESS | Errno::NODEV)) => {
                    return Err(self.failed("attaching the decapsulator", e));
                }
                // queues, MTU or driver do not suit native XDP
                Err(e) => refusal = e,
            }
        }
        Err(self.failed("attaching the decapsulator", refusal))
    }

    fn attach_by_netlink(&self, program: &Xdp, kind: XdpKind) -> Result<Result<Held, Errno>, Error> {
        let fd = program.fd().map_err(|e| self.bpf("the program", &e))?;
        let set = self.rtnl.set_xdp(self.interface.index, kind, fd.as_fd(), None);
        Ok(set.map(|()| Held::Interface))
    }

    fn attach_pinned(&self, program: &mut Xdp, kind: XdpKind) -> Result<Result<Held, Errno>, Error> {
        let mode = if kind == XdpKind::Native { XdpMode::Driver } else { XdpMode::Skb };
        let id = match program.attach_to_if_index(self.interface.index, mode) {
            Ok(id) => id,
            Err(e) => {
                return match os_error(&e) {
                    Some(errno) => Ok(Err(errno)),
                    None => Err(self.bpf("attaching the decapsulator", &e)),
                };
            }
        };
        let link = program.take_link(id).map_err(|e: ProgramError| self.bpf("its link", &e))?;
        let Ok(link) = FdLink::try_from(link) else {
            // A kernel without links for XDP: it was attached by rtnetlink, and nobody detaches it now.
            return Ok(Ok(Held::Interface));
        };
        let _hold = Hold::take(&self.pin_dir)?;
        match fs::remove_file(&self.pin) {
            // of an interface that is gone and had this number
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(Error::os(self.pin.display().to_string(), e)),
        }
        link.pin(&self.pin).map_err(|e| Error::bpf(self.pin.display().to_string(), &e))?;
        Ok(Ok(Held::Pin(self.pin.clone())))
    }

    /// Whether the directory for pins is in a BPF file system; makes it there.
    fn pins_possible(&self) -> Result<bool, Error> {
        // The nearest directory that exists says what file system it would be in.
        let nearest = self.pin_dir.ancestors().find(|d| d.is_dir()).unwrap_or(Path::new("/"));
        let system = rustix::fs::statfs(nearest).map_err(|e| Error::os(nearest.display().to_string(), e))?;
        #[allow(clippy::cast_sign_loss, reason = "a magic number, whatever its type on this machine")]
        if system.f_type as u64 & 0xffff_ffff != BPF_FS_MAGIC {
            return Ok(false);
        }
        fs::create_dir_all(&self.pin_dir).map_err(|e| Error::os(self.pin_dir.display().to_string(), e))?;
        Ok(true)
    }

    /// A link lets go a moment after its last holder.
    fn until_gone(&self, id: u32) -> Result<(), Error> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let now = match self.rtnl.interface(&self.dev) {
                Ok(now) => now,
                Err(Errno::NODEV) => return Ok(()),
                Err(e) => return Err(self.failed("looking whether the program is gone", e)),
            };
            if now.xdp.iter().all(|a| a.id != id) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(Error::Bpf {
                    what: format!("interface {}", self.dev),
                    reason: "the decapsulator is unpinned, but another process holds its link".into(),
                });
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Makes the program with its table of addresses; not attached yet.
fn prepare(addresses: &[IpAddr]) -> Result<Ebpf, Error> {
    let mut ebpf = EbpfLoader::new().load(OBJECT).map_err(|e| Error::bpf("loading the decapsulator", &e))?;
    let map = ebpf.map_mut(TABLE).ok_or_else(|| missing(TABLE))?;
    let mut map: HashMap<&mut MapData, [u8; 20], u32> =
        HashMap::try_from(map).map_err(|e| Error::bpf("BPF map own_addresses", &e))?;
    for address in addresses {
        map.insert(key(*address), 1, 0).map_err(|e| Error::bpf("BPF map own_addresses", &e))?;
    }
    program(&mut ebpf)?.load().map_err(|e| Error::bpf("loading the decapsulator", &e))?;
    Ok(ebpf)
}

fn program(ebpf: &mut Ebpf) -> Result<&mut Xdp, Error> {
    match ebpf.program_mut(PROGRAM) {
        Some(Program::Xdp(p)) => Ok(p),
        _ => Err(missing(PROGRAM)),
    }
}

fn missing(what: &str) -> Error {
    Error::Bpf { what: format!("decapsulator: {what}"), reason: "not in the object".into() }
}

/// `struct own_key` of the program.
fn key(address: IpAddr) -> [u8; 20] {
    let mut key = [0; 20];
    match address {
        IpAddr::V4(a) => {
            key[..4].copy_from_slice(&4u32.to_ne_bytes());
            key[4..8].copy_from_slice(&a.octets());
        }
        IpAddr::V6(a) => {
            key[..4].copy_from_slice(&6u32.to_ne_bytes());
            key[4..].copy_from_slice(&a.octets());
        }
    }
    key
}

/// The address of a key.
fn address(key: [u8; 20]) -> Option<IpAddr> {
    let (family, rest) = key.split_first_chunk::<4>()?;
    match u32::from_ne_bytes(*family) {
        4 => rest.first_chunk::<4>().map(|a| Ipv4Addr::from(*a).into()),
        6 => rest.first_chunk::<16>().map(|a| Ipv6Addr::from(*a).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
