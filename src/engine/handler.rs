use crate::engine::{Frame, Out, Verdict};
use crate::time::Now;

/// What a port's worker calls for its frames: the engine, or in tests and benches something simpler.
///
/// A worker owns its handler; nothing else calls it.
pub trait FrameHandler {
    /// Judges (and rewrites in place) up to 64 frames.
    ///
    /// `verdicts` is empty at the call and must hold one verdict for each frame, in order, when it returns. A frame
    /// whose verdict is [`Verdict::Pass`] must hold the bytes it came with (but for what that verdict allows).
    fn batch(&mut self, now: Now, frames: &mut [Frame<'_>], verdicts: &mut Vec<Verdict>);

    /// Hands over the frames that the core made itself, oldest first. Called after each batch and each tick.
    fn drain_outbox(&mut self, send: &mut dyn FnMut(Out));

    /// Timers. Spurious calls are harmless.
    fn tick(&mut self, now: Now);

    /// When [`FrameHandler::tick`] is wanted next; may change with each call of another method.
    fn next_deadline(&self, now: Now) -> Now;
}
