/// Why a frame was dropped. Each has a counter and a sentence in `docs/counters.md`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Reason {
    /// (list grows with the engine)
    NoDestination,
}
