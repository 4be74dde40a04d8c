//! Why a scheduler could not be made.

use crate::names;
use std::fmt;

/// Why a scheduler could not be made. Displayed as one line that names what was given and what there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateError {
    /// There is no scheduler of this name.
    Unknown {
        /// The name given.
        name: String,
    },
    /// The scheduler does not know this flag.
    Flags {
        /// The scheduler.
        scheduler: &'static str,
        /// The flag given.
        flag: String,
        /// The flags it knows.
        known: Vec<&'static str>,
    },
    /// The scheduler has no table whose size could be chosen.
    NoTableSize {
        /// The scheduler.
        scheduler: &'static str,
    },
    /// The table size is not one that the scheduler can work with.
    TableSize {
        /// The scheduler.
        scheduler: &'static str,
        /// The size given, in slots.
        size: u32,
        /// What is wrong with it.
        reason: TableSizeError,
    },
}

/// What is wrong with a table size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableSizeError {
    /// It must be a prime number.
    NotPrime,
    /// It is above this limit.
    TooLarge {
        /// The largest size, in slots.
        limit: u32,
    },
    /// It must be larger than the number of servers.
    TooFew {
        /// The servers there are.
        servers: usize,
    },
}

impl fmt::Display for CreateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CreateError::Unknown { name } => {
                let names: Vec<&str> = names().iter().map(|algorithm| algorithm.name).collect();
                write!(f, "unknown scheduler {name:?}: there are {}", names.join(", "))
            }
            CreateError::Flags { scheduler, flag, known } => {
                write!(f, "scheduler {scheduler} has no flag {flag:?}: it takes {}", known.join(", "))
            }
            CreateError::NoTableSize { scheduler } => {
                let sized: Vec<&str> = names().iter().filter(|a| a.table_size).map(|a| a.name).collect();
                write!(f, "scheduler {scheduler} takes no table size: only {} does", sized.join(", "))
            }
            CreateError::TableSize { scheduler, size, reason } => {
                write!(f, "table size {size} of scheduler {scheduler} ")?;
                match reason {
                    TableSizeError::NotPrime => write!(f, "is not a prime number (65537 and 655373 are)"),
                    TableSizeError::TooLarge { limit } => write!(f, "is above the limit of {limit}"),
                    TableSizeError::TooFew { servers } => {
                        write!(f, "is not larger than the {servers} servers")
                    }
                }
            }
        }
    }
}

impl std::error::Error for CreateError {}
