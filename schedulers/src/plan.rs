//! Long work of a scheduler that is done while others use it.

use std::any::Any;
use std::fmt;

/// What is to be done; see [`Scheduler::plan`](crate::Scheduler::plan).
pub struct Plan(Box<dyn FnOnce() -> Built + Send>);

/// What came of a plan, for [`Scheduler::install`](crate::Scheduler::install).
#[derive(Debug)]
pub struct Built(Box<dyn Any + Send>);

impl Plan {
    /// `build` is what is to be done.
    pub fn new<T: Any + Send>(build: impl FnOnce() -> T + Send + 'static) -> Plan {
        Plan(Box::new(|| Built(Box::new(build()))))
    }

    /// Does it.
    pub fn build(self) -> Built {
        (self.0)()
    }
}

impl Built {
    /// What was built, if by a scheduler of this kind.
    pub fn of<T: Any>(&mut self) -> Option<&mut T> {
        self.0.downcast_mut()
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Plan")
    }
}
