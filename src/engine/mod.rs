//! Frame and time in, verdict out.

mod frame;
mod handler;
mod reason;
pub use frame::{Frame, Gso, Out, RxChecksum, Verdict};
pub use handler::FrameHandler;
pub use reason::Reason;
