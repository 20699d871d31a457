//! Which state leads to which, without the states.

/// States by number, how each was reached first, and the fault-free steps.
pub struct Graph<Action> {
    parents: Vec<(u32, Action)>,
    complete: Vec<bool>,
    steps: Vec<(u32, u32)>,
}

impl<Action: Copy> Graph<Action> {
    pub fn new() -> Graph<Action> {
        Graph { parents: Vec::new(), complete: Vec::new(), steps: Vec::new() }
    }

    pub fn add(&mut self, parent: u32, action: Action, complete: bool) {
        self.parents.push((parent, action));
        self.complete.push(complete);
    }

    pub fn connect(&mut self, from: u32, to: u32) {
        self.steps.push((from, to));
    }

    /// Actions from the start to a state.
    pub fn path(&self, mut id: u32) -> Vec<Action> {
        let mut actions = Vec::new();
        while let Some(&(parent, action)) = self.parents.get(id as usize).filter(|(parent, _)| *parent != u32::MAX) {
            actions.push(action);
            id = parent;
        }
        actions.reverse();
        actions
    }

    /// A state from which no fault-free steps lead to a complete one, by
    /// walking backwards from all that are complete.
    pub fn find_stuck(&mut self) -> Option<u32> {
        let count = self.parents.len();
        self.steps.sort_unstable_by_key(|&(_, to)| to);
        let mut first = vec![0usize; count + 1];
        self.steps.iter().for_each(|&(_, to)| first[to as usize + 1] += 1);
        for id in 0..count {
            first[id + 1] += first[id];
        }
        let mut reaches = self.complete.clone();
        let mut work: Vec<u32> = (0..count as u32).filter(|&id| reaches[id as usize]).collect();
        while let Some(id) = work.pop() {
            for &(from, _) in &self.steps[first[id as usize]..first[id as usize + 1]] {
                if !std::mem::replace(&mut reaches[from as usize], true) {
                    work.push(from);
                }
            }
        }
        reaches.iter().position(|reaches| !reaches).map(|id| id as u32)
    }
}
