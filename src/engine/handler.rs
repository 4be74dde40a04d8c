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

    /// Where there is a tier: whether flows wait to be handed to it. The port calls [`FrameHandler::marks_ready`] when everything that
    /// was on its way to this worker's rings at this call, or later, has been judged and sent.
    fn marks_waiting(&mut self) -> bool {
        false
    }

    /// They may be handed over: those that waited at the last call of [`FrameHandler::marks_waiting`].
    fn marks_ready(&mut self) {}
}
