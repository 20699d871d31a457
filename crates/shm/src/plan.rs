//! How a collective is carried out: found by every rank for itself, from what all have published, so all find the same.

use std::ops::Range;

use crate::Error;
use crate::call::Descriptor;
use crate::progress::Steps;

/// What a rank may read more, in bytes, to spare itself one wait for all others.
const WAIT_WORTH_BYTES: usize = 64 << 10;
/// Parts of the vector begin at multiples of a cache line, so that no two ranks write the same one.
const LINE_BYTES: usize = 64;

/// The way the data takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// Each rank reads a part of all inputs and writes it to all outputs, where they are.
    Direct,
    /// In windows through the stages.
    Staged(Steps),
}

/// One collective as all ranks see it.
pub(crate) struct Plan {
    pub ranks: Vec<Descriptor>,
    pub path: Path,
    /// Every position of the vector where a contribution or a reception begins or ends, in order.
    cuts: Vec<usize>,
}

impl Plan {
    /// `may_be_direct` if no other host is involved and the vector is worth it.
    pub(crate) fn new(ranks: Vec<Descriptor>, may_be_direct: bool, goes_up: bool) -> Result<Plan, Error> {
        if let Some(other) = (1..ranks.len()).find(|rank| !ranks[*rank].agrees_with(&ranks[0])) {
            return Err(Error::Mismatch(mismatch(&ranks[0], other, &ranks[other])));
        }
        let ends = |range: &Range<usize>| [range.start, range.end];
        let parts = ranks.iter().flat_map(|rank| [&rank.contributes, &rank.receives]);
        let mut cuts: Vec<usize> = parts.flat_map(ends).collect();
        cuts.sort_unstable();
        cuts.dedup();
        let path = if may_be_direct && ranks.iter().all(Descriptor::is_registered) {
            Path::Direct
        } else {
            Path::Staged(Steps { reduces: goes_up || !reads_all_stages(&ranks), goes_up })
        };
        Ok(Plan { ranks, path, cuts })
    }

    /// The pieces of `range` in which the same ranks contribute and the same ranks receive.
    pub(crate) fn pieces(&self, range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let inner = self.cuts.iter().copied().filter(move |cut| range.start < *cut && *cut < range.end);
        let mut start = range.start;
        inner.chain([range.end]).filter_map(move |end| {
            let piece = start..end;
            start = end;
            (!piece.is_empty()).then_some(piece)
        })
    }

    /// The ranks that contribute to `piece`.
    pub(crate) fn contributors(&self, piece: &Range<usize>) -> impl Iterator<Item = usize> {
        holders(&self.ranks, piece, |rank| &rank.contributes)
    }

    /// The ranks that receive `piece`.
    pub(crate) fn receivers(&self, piece: &Range<usize>) -> impl Iterator<Item = usize> {
        holders(&self.ranks, piece, |rank| &rank.receives)
    }
}

fn holders(
    ranks: &[Descriptor],
    piece: &Range<usize>,
    part: impl Fn(&Descriptor) -> &Range<usize>,
) -> impl Iterator<Item = usize> {
    let (start, end) = (piece.start, piece.end);
    let holds = move |rank: &Descriptor| part(rank).start <= start && end <= part(rank).end;
    ranks.iter().enumerate().filter(move |(_, rank)| holds(rank)).map(|(index, _)| index)
}

/// The part of `range` that `rank` of `rank_count` works on.
pub(crate) fn share(range: &Range<usize>, rank: usize, rank_count: usize) -> Range<usize> {
    let lines = range.len().div_ceil(LINE_BYTES);
    let at = |rank: usize| (range.start + lines * rank / rank_count * LINE_BYTES).min(range.end);
    at(rank)..at(rank + 1)
}

/// Where two ranges overlap; empty if they do not.
pub(crate) fn overlap(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    let start = a.start.max(b.start);
    start..a.end.min(b.end).max(start)
}

/// True if it is faster that every rank combines for itself what it receives: for short vectors, and where a rank receives
/// only a part or nothing is to be combined.
fn reads_all_stages(ranks: &[Descriptor]) -> bool {
    let contributed: usize = ranks.iter().map(|rank| rank.contributes.len()).sum();
    let alone = |rank: &Descriptor| -> usize {
        ranks.iter().map(|other| overlap(&other.contributes, &rank.receives).len()).sum()
    };
    let together = |rank: &Descriptor| contributed / ranks.len() + rank.receives.len();
    let most = |cost: &dyn Fn(&Descriptor) -> usize| ranks.iter().map(cost).max().unwrap_or(0);
    most(&alone) <= most(&together) + WAIT_WORTH_BYTES
}

fn mismatch(first: &Descriptor, other: usize, second: &Descriptor) -> String {
    let words = |rank: &Descriptor| format!("collective {}, {}, tag {:08x}", rank.sequence, rank.description, rank.tag);
    format!("local rank 0 is in {}; local rank {other} is in {}", words(first), words(second))
}
