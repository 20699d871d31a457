//! Every interleaving of a small cluster: each order of deliveries, with a
//! budget of losses, duplicates and early timeouts.
//!
//! Time does not pass here: a timeout is an event like any other. When the
//! network is empty it costs nothing, since nothing else can happen; before
//! that it is a fault of its own, as a resend crosses its answer. The parts'
//! states are recognised by 128-bit hashes that leave out times and counters.

pub(crate) mod graph;
pub(crate) mod hash;
mod model;
pub(crate) mod node;
pub(crate) mod packet;
mod state;

use std::collections::{HashMap, VecDeque};

use fanin_protocol::switchml::WireFormat;

use graph::Graph;
use model::Model;
use state::{Action, State};

const WORKERS_MAX: usize = 3;
const CHUNKS_MAX: usize = 8;

/// How small the cluster is and how much may go wrong.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// Workers.
    pub workers: u16,
    /// Slots of the one lane.
    pub slots: u32,
    /// Blocks that each worker sums.
    pub blocks: u32,
    /// Whether blocks are scaled, so that the first use of each slot is an
    /// announce.
    pub scaled: bool,
    /// Packets that may be lost.
    pub losses: u8,
    /// Packets that may be duplicated.
    pub duplicates: u8,
    /// Timeouts while packets are under way, beyond one for each loss.
    pub early_timeouts: u8,
    /// Whether one worker may end, at any moment.
    pub death: bool,
    /// Whether each direction of each worker's link keeps order.
    pub in_order: bool,
    /// Layout of the datagrams.
    pub wire_format: WireFormat,
}

/// What was explored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Explored {
    /// Different states.
    pub states: u64,
    /// Steps between them.
    pub steps: u64,
    /// States in which every worker has all its sums, or waits for one that the switch names as missing.
    pub complete: u64,
}

/// A rule that does not hold in some reachable state.
#[derive(Clone, Debug)]
pub struct Counterexample {
    /// Which rule, and how.
    pub what: String,
    /// The shortest way there, step by step.
    pub path: Vec<String>,
}

impl std::fmt::Display for Counterexample {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}", self.what)?;
        self.path.iter().try_for_each(|step| writeln!(f, "  {step}"))
    }
}

/// Explores all states of a scope.
///
/// # Errors
/// The first state found in which a rule does not hold, or from which no
/// fault-free way leads to completion.
pub fn explore(scope: &Scope) -> Result<Explored, Counterexample> {
    let mut search = Search::new(scope)?;
    while let Some((id, state)) = search.frontier.pop_front() {
        search.expand(id, &state)?;
    }
    search.finish()
}

struct Search {
    model: Model,
    ids: HashMap<State, u32, hash::WideBuild>,
    graph: Graph<Action>,
    /// Breadth first, so that a counterexample is a shortest one.
    frontier: VecDeque<(u32, State)>,
    explored: Explored,
}

impl Search {
    fn new(scope: &Scope) -> Result<Search, Counterexample> {
        let mut search = Search {
            model: Model::new(scope),
            ids: HashMap::default(),
            graph: Graph::new(),
            frontier: VecDeque::new(),
            explored: Explored::default(),
        };
        let first = State::new(&mut search.model).map_err(|what| Counterexample { what, path: Vec::new() })?;
        search.visit(first, u32::MAX, Action::Start);
        Ok(search)
    }

    /// The state's number; a new state is put up for expansion.
    fn visit(&mut self, state: State, parent: u32, action: Action) -> u32 {
        let next = self.ids.len() as u32;
        let id = *self.ids.entry(state).or_insert(next);
        if id == next {
            let complete = state.is_complete(&self.model);
            self.graph.add(parent, action, complete);
            self.explored.complete += u64::from(complete);
            self.frontier.push_back((id, state));
        }
        id
    }

    fn expand(&mut self, id: u32, state: &State) -> Result<(), Counterexample> {
        for action in state.actions(&self.model) {
            let mut after = *state;
            after.apply(&mut self.model, action).map_err(|what| self.counterexample(what, id, Some(action)))?;
            self.explored.steps += 1;
            let after = self.visit(after, id, action);
            if !action.is_fault() {
                self.graph.connect(id, after);
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Explored, Counterexample> {
        self.explored.states = self.ids.len() as u64;
        match self.graph.find_stuck() {
            None => Ok(self.explored),
            Some(id) => Err(self.counterexample("no way leads to completion from here".into(), id, None)),
        }
    }

    fn counterexample(&mut self, what: String, id: u32, last: Option<Action>) -> Counterexample {
        let mut actions = self.graph.path(id);
        actions.extend(last);
        let mut path = Vec::new();
        if let Ok(mut state) = State::new(&mut self.model) {
            for action in actions {
                path.push(state.describe(&self.model, action));
                // The last step breaks the rule.
                if state.apply(&mut self.model, action).is_err() {
                    break;
                }
            }
        }
        Counterexample { what, path }
    }
}
