//! One VID of a tree at a switch.

use fanin_wire::panama::ElementFormat;

/// How far a VID has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum State {
    /// Contributions wait for others, or for the VIDs before.
    #[default]
    Collecting,
    /// Summed and sent up; the sum is kept until the Result comes.
    Sent,
    /// The Result is kept until every port has shown that it has it.
    Result,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub state: State,
    /// Ports whose Contributions are here, a bit for each.
    pub ports: u64,
    /// Children, by their number in the tree, whose Contributions have elements.
    pub filled: u64,
    /// Congestion experienced by any of them (PANAMA §4.2, "bitwise OR").
    pub ecn: bool,
    /// Of all ports.
    pub fin: bool,
    /// The least of what they have been told on the way.
    pub cwnd_cap: u16,
    /// Workers in the sum.
    pub worker_count: u16,
    pub collective_tag: u32,
    /// Of every Contribution with elements; 0 if none has any.
    pub element_count: u16,
    pub element_format: ElementFormat,
}

impl Place {
    pub const EMPTY: Place = Place {
        state: State::Collecting,
        ports: 0,
        filled: 0,
        ecn: false,
        fin: false,
        cwnd_cap: u16::MAX,
        worker_count: 0,
        collective_tag: 0,
        element_count: 0,
        element_format: ElementFormat::Float32,
    };
}
