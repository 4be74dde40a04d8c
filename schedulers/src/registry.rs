//! The registry: which algorithms there are, and how one is made by name.

use crate::{CreateError, Options, Scheduler, Servers};
use crate::{dh, fo, lc, maglev, mh, nq, ovf, rr, sed, sh, wlc, wrr};

/// How an algorithm's file makes its scheduler.
type Create = fn(&Options, &dyn Servers) -> Result<Box<dyn Scheduler>, CreateError>;

/// One algorithm, as the registry knows it.
#[derive(Debug)]
pub struct Algorithm {
    /// The name that `ipvsadm -s` gives it.
    pub name: &'static str,
    /// One line for help texts.
    pub description: &'static str,
    /// The scheduler flags (`ipvsadm -b`) with a meaning for it.
    pub flags: &'static [FlagName],
    /// Whether [`Options::table_size`] may be given.
    pub table_size: bool,
    create: Create,
}

/// A scheduler flag of IPVS, by its bit in the service's flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flag {
    /// `flag-1`, `IP_VS_SVC_F_SCHED1` (0x0008): [`Options::fallback`].
    Sched1,
    /// `flag-2`, `IP_VS_SVC_F_SCHED2` (0x0010): [`Options::port`].
    Sched2,
    /// `flag-3`, `IP_VS_SVC_F_SCHED3` (0x0020): no algorithm gives it a meaning.
    Sched3,
}

/// The name under which an algorithm knows a flag.
pub type FlagName = (&'static str, Flag);

/// Names that every algorithm accepts; one without a meaning for the flag ignores it, as IPVS does.
const GENERAL_FLAGS: [FlagName; 3] =
    [("flag-1", Flag::Sched1), ("flag-2", Flag::Sched2), ("flag-3", Flag::Sched3)];

/// An algorithm that knows no flags.
const fn plain(name: &'static str, description: &'static str, create: Create) -> Algorithm {
    Algorithm { name, description, flags: &[], table_size: false, create }
}

impl Algorithm {
    const fn flags(self, flags: &'static [FlagName]) -> Self {
        Algorithm { flags, ..self }
    }

    const fn sized(self) -> Self {
        Algorithm { table_size: true, ..self }
    }
}

/// Every algorithm there is. A new one is its file and its line here.
static ALGORITHMS: &[Algorithm] = &[
    plain("rr", "round robin: each server in turn", rr::create),
    plain("wrr", "weighted round robin: in turn, as often as the weight says", wrr::create),
    plain("lc", "least connections", lc::create),
    plain("wlc", "weighted least connections: fewest connections for the weight", wlc::create),
    plain(
        "sed",
        "shortest expected delay: fewest active connections, the new one included, for the weight",
        sed::create,
    ),
    plain("nq", "never queue: an idle server, else as sed", nq::create),
    plain("fo", "failover: the highest weight", fo::create),
    plain("ovf", "overflow: the highest weight that has no more active connections than that", ovf::create),
    plain("sh", "source hashing: by the client's address", sh::create)
        .flags(&[("sh-fallback", Flag::Sched1), ("sh-port", Flag::Sched2)]),
    plain("dh", "destination hashing: by the destination address", dh::create),
    plain("mh", "Maglev hashing by the client's address, slot for slot the kernel's", mh::create)
        .flags(&[("mh-fallback", Flag::Sched1), ("mh-port", Flag::Sched2)]),
    plain("maglev", "Maglev hashing as published: both addresses and ports, large table", maglev::create)
        .sized(),
];

/// Every algorithm there is, in the order of help texts.
pub fn names() -> &'static [Algorithm] {
    ALGORITHMS
}

/// The algorithm called `name`.
///
/// # Errors
/// [`CreateError::Unknown`] where there is none.
pub fn find(name: &str) -> Result<&'static Algorithm, CreateError> {
    let found = ALGORITHMS.iter().find(|algorithm| algorithm.name == name);
    found.ok_or_else(|| CreateError::Unknown { name: name.into() })
}

/// Makes the scheduler called `name` for a service with these servers.
///
/// Flags without a meaning for the algorithm are ignored, as IPVS does with the bits; a flag given by name is checked
/// by [`parse_flag`].
///
/// # Errors
/// [`CreateError::Unknown`] where there is no such scheduler; [`CreateError::NoTableSize`] and
/// [`CreateError::TableSize`] where the table size does not fit.
pub fn create(
    name: &str,
    options: &Options,
    servers: &dyn Servers,
) -> Result<Box<dyn Scheduler>, CreateError> {
    let algorithm = find(name)?;
    if options.table_size.is_some() && !algorithm.table_size {
        return Err(CreateError::NoTableSize { scheduler: algorithm.name });
    }
    (algorithm.create)(options, servers)
}

/// What the flag name `flag` (one word of `ipvsadm -b`) means for the scheduler called `name`.
///
/// # Errors
/// [`CreateError::Unknown`] where there is no such scheduler; [`CreateError::Flags`] where it does not know the flag.
pub fn parse_flag(name: &str, flag: &str) -> Result<Flag, CreateError> {
    let algorithm = find(name)?;
    let known = algorithm.flags.iter().chain(&GENERAL_FLAGS);
    let found = known.clone().find(|(known, _)| *known == flag);
    found.map(|(_, flag)| *flag).ok_or_else(|| CreateError::Flags {
        scheduler: algorithm.name,
        flag: flag.into(),
        known: known.map(|(name, _)| *name).collect(),
    })
}
