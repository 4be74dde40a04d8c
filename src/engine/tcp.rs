//! The TCP state machine, as IPVS keeps it.
//!
//! IPVS does not follow sequence numbers: it looks at the flags of each segment and at its direction. The tables below
//! are what a Linux 6.1 director was observed to do from each reachable state with each segment
//! (`tests/golden/c-states.tsv`); every cell is tested. A segment's event is decided by its flags in the order RST,
//! SYN, FIN, ACK; a segment with none of them closes the connection.

use modes::packet::tcp_flags;

/// State of a connection entry. TCP's names are those of `ipvsadm -Lnc`; the numbers are the kernel's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum State {
    /// Just made, or a template.
    None = 0,
    Established = 1,
    SynSent = 2,
    SynRecv = 3,
    FinWait = 4,
    TimeWait = 5,
    Close = 6,
    CloseWait = 7,
    /// The only state of a UDP flow.
    Udp = 32,
}

impl State {
    /// From the number in an entry; an unknown number is [`State::None`].
    pub fn from_u8(n: u8) -> State {
        match n {
            1 => State::Established,
            2 => State::SynSent,
            3 => State::SynRecv,
            4 => State::FinWait,
            5 => State::TimeWait,
            6 => State::Close,
            7 => State::CloseWait,
            32 => State::Udp,
            _ => State::None,
        }
    }

    /// As `ipvsadm -Lnc` prints it.
    pub fn name(self) -> &'static str {
        match self {
            State::None => "NONE",
            State::Established => "ESTABLISHED",
            State::SynSent => "SYN_SENT",
            State::SynRecv => "SYN_RECV",
            State::FinWait => "FIN_WAIT",
            State::TimeWait => "TIME_WAIT",
            State::Close => "CLOSE",
            State::CloseWait => "CLOSE_WAIT",
            State::Udp => "UDP",
        }
    }

    /// Whether a connection in this state counts as active (ActiveConn) rather than inactive (InActConn).
    pub fn is_active(self) -> bool {
        matches!(self, State::Established | State::SynSent | State::SynRecv)
    }
}

/// Which way a segment goes, and whether the other way can be seen at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum View {
    /// Client to server, where replies come through the director too (NAT).
    Input = 0,
    /// Server to client.
    Output = 1,
    /// Client to server, where replies bypass the director (DR, tunnels).
    InputOnly = 2,
}

/// What a segment is, for the state machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// SYN without RST.
    Syn = 0,
    /// FIN without RST, SYN.
    Fin = 1,
    /// ACK alone (data, window updates).
    Ack = 2,
    /// RST, whatever else is set.
    Rst = 3,
    /// None of these flags.
    Nothing = 4,
}

impl Event {
    /// Classifies a segment by its flags.
    #[inline]
    pub fn of(flags: u8) -> Event {
        if flags & tcp_flags::RST != 0 {
            Event::Rst
        } else if flags & tcp_flags::SYN != 0 {
            Event::Syn
        } else if flags & tcp_flags::FIN != 0 {
            Event::Fin
        } else if flags & tcp_flags::ACK != 0 {
            Event::Ack
        } else {
            Event::Nothing
        }
    }
}

use State::{
    Close as CL, CloseWait as CW, Established as ES, FinWait as FW, None as NO, SynRecv as SR, SynSent as SS,
    TimeWait as TW,
};

/// `TABLE[view][event][state]`. Cells of states that a view cannot reach keep to the row's sense.
const TABLE: [[[State; 8]; 5]; 3] = [
    [
        // Input    NO  ES  SS  SR  FW  TW  CL  CW
        /* syn  */ [SR, ES, ES, SR, SR, SR, SR, SR],
        /* fin  */ [CL, CW, SS, TW, TW, TW, CL, CW],
        /* ack  */ [ES, ES, SS, ES, FW, TW, CL, CW],
        /* rst  */ [CL, CL, CL, SR, CL, CL, CL, CL],
        /* none */ [CL, CL, CL, CL, CL, CL, CL, CL],
    ],
    [
        // Output   NO  ES  SS  SR  FW  TW  CL  CW
        /* syn  */ [SS, ES, SS, SR, SS, SS, SS, SS],
        /* fin  */ [TW, FW, SS, TW, FW, TW, CL, TW],
        /* ack  */ [ES, ES, SS, ES, FW, TW, CL, CW],
        /* rst  */ [CL, CL, SS, CL, CL, TW, CL, CL],
        /* none */ [CL, CL, CL, CL, CL, CL, CL, CL],
    ],
    [
        // In only  NO  ES  SS  SR  FW  TW  CL  CW
        /* syn  */ [SR, ES, ES, SR, SR, SR, SR, SR],
        /* fin  */ [CL, FW, SS, TW, FW, TW, CL, CW],
        /* ack  */ [ES, ES, ES, ES, FW, TW, CL, CW],
        /* rst  */ [CL, CL, CL, SR, CL, CL, CL, CL],
        /* none */ [CL, CL, CL, CL, CL, CL, CL, CL],
    ],
];

/// The state after a segment with these flags.
pub fn next(view: View, state: State, flags: u8) -> State {
    let column = state as usize;
    if column >= 8 {
        return NO;
    }
    TABLE[view as usize][Event::of(flags) as usize][column]
}

/// [`TABLE`] by the numbers in entries; a last column for [`State::Udp`], which a packet never changes.
static NUMBERS: [[[u8; 9]; 5]; 3] = {
    let mut all = [[[State::Udp as u8; 9]; 5]; 3];
    let mut i = 0;
    while i < 3 * 5 * 8 {
        let (view, event, state) = (i / 40, i / 8 % 5, i % 8);
        all[view][event][state] = TABLE[view][event][state] as u8;
        i += 1;
    }
    all
};

/// Whether a packet (of TCP or UDP; with flags 0 for UDP) leaves an entry in the state of this number. Of numbers that no state
/// has it says no.
#[inline(always)]
pub(super) fn stays(view: View, number: u8, flags: u8) -> bool {
    let column = usize::from(number).min(8);
    NUMBERS[view as usize][Event::of(flags) as usize][column] == number
}

/// Seconds for which a connection in `state` lives without a packet; ESTABLISHED, FIN_WAIT and UDP are set by
/// `ipvsadm --set` and given here.
pub fn timeout(state: State, tcp: u32, tcp_fin: u32, udp: u32) -> u32 {
    match state {
        ES => tcp,
        FW => tcp_fin,
        State::Udp => udp,
        SS | TW => 120,
        SR | CW => 60,
        CL => 10,
        NO => 2,
    }
}
