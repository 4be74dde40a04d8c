//! Frame and time in, verdict out.

mod frame;
mod reason;
pub use frame::{Frame, Gso, Out, RxChecksum, Verdict};
pub use reason::Reason;
