//! Stage 3: are all there who are waited for?

use super::job::Tree;

/// True if the expected VID can be summed: as many ports as make a quorum have it, all of them if it is a FIN. Sums that
/// somebody below may still lack are kept, as many as buffers are deep; one more has to wait until he has shown to have the first.
pub(super) fn stage<B>(tree: &Tree<B>) -> bool {
    let place = tree.place(tree.expected);
    let needed = if place.fin { tree.config.ports.count_ones() } else { tree.config.quorum.into() };
    tree.finished.is_none() && place.ports.count_ones() >= needed && tree.expected < tree.floor + tree.depth
}
