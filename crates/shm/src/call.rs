//! What a rank asks for, what it tells the others about it, and how that is checked.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use fanin_numeric::sum::{Element, Operation, Reduction};

use crate::Error;

/// One collective as one rank calls it.
///
/// All collectives are seen as one vector of `bytes` bytes. Each rank contributes a part of it and receives a part of it;
/// where contributions overlap they are combined by `operation`, and where nobody contributes the vector is zero:
///
/// | collective | contributes | receives |
/// | --- | --- | --- |
/// | all-reduce | all | all |
/// | reduce | all | all at the root, else nothing |
/// | reduce-scatter | all | the own shard |
/// | all-gather | the own shard | all |
/// | broadcast | all at the root, else nothing | all (the root may leave it out) |
/// | barrier (`bytes` 0) | nothing | nothing |
///
/// Collectives that only move data use [`Operation::Or`] on [`Element::Byte`].
#[derive(Clone, Debug)]
pub struct Call {
    /// Position in the group's order of collectives; equal on all ranks.
    pub sequence: u64,
    /// Equal on all ranks if they call the same collective: a hash of what must agree.
    pub tag: u32,
    /// The collective in words, for the error if the ranks disagree; about 380 bytes are kept.
    pub description: String,
    /// How contributions are combined.
    pub operation: Operation,
    /// The vector's elements.
    pub element: Element,
    /// Divides sums of floats; 1 for a plain sum.
    pub divisor: f32,
    /// Length of the vector, bytes.
    pub bytes: usize,
    /// The part of the vector that lies at `input`, bytes.
    pub contributes: Range<usize>,
    /// The part of the vector that is written to `output`, bytes.
    pub receives: Range<usize>,
    /// `contributes.len()` bytes.
    pub input: *const u8,
    /// `receives.len()` bytes. It may overlap `input` only where both hold the same part of the vector (in place).
    pub output: *mut u8,
    /// Raised by one for every window of the vector that this rank is done with, for whoever reports how far it is. An empty
    /// vector counts as one window; registered memory is summed in one go, and its windows are counted at the end.
    pub windows_done: Arc<AtomicU64>,
}

/// Descriptors are this many words in shared memory.
pub(crate) const DESCRIPTOR_WORDS: usize = 64;
/// Words before the description.
const FIXED_WORDS: usize = 15;
const DESCRIPTION_BYTES_MAX: usize = 8 * (DESCRIPTOR_WORDS - FIXED_WORDS);
const NO_PLACE: u64 = u64::MAX;

/// Where registered memory is in the group's memory file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Start of the region in the file, bytes.
    pub region_offset: u64,
    /// Length of the region, bytes.
    pub region_bytes: usize,
    /// Position in the region, bytes.
    pub at: usize,
}

/// What the other ranks need to know of a [`Call`].
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Descriptor {
    pub sequence: u64,
    pub tag: u32,
    pub operation: Operation,
    pub element: Element,
    pub divisor: f32,
    pub bytes: usize,
    pub contributes: Range<usize>,
    pub receives: Range<usize>,
    /// If it is registered memory; then the same holds for every part of it.
    pub input: Option<Place>,
    pub output: Option<Place>,
    pub description: String,
}

impl Call {
    /// Finds what could not work, before anything is published.
    pub(crate) fn check(&self) -> Result<Reduction, Error> {
        let problem = |problem: &str| Err(Error::Call(format!("{problem}, in {}", self.description)));
        let Some(reduction) = Reduction::new(self.operation, self.element) else {
            return problem(&format!("{:?} has no meaning for {:?}", self.operation, self.element));
        };
        if let Some(range_problem) = range_problem(self.bytes, self.element, [&self.contributes, &self.receives]) {
            return problem(range_problem);
        }
        if !self.contributes.is_empty() && self.input.is_null() || !self.receives.is_empty() && self.output.is_null() {
            return problem("a null pointer for memory that is not empty");
        }
        Ok(reduction)
    }

    pub(crate) fn describe(&self, input: Option<Place>, output: Option<Place>) -> Descriptor {
        Descriptor {
            sequence: self.sequence,
            tag: self.tag,
            operation: self.operation,
            element: self.element,
            divisor: self.divisor,
            bytes: self.bytes,
            contributes: self.contributes.clone(),
            receives: self.receives.clone(),
            input,
            output,
            description: self.description.clone(),
        }
    }
}

fn range_problem(bytes: usize, element: Element, ranges: [&Range<usize>; 2]) -> Option<&'static str> {
    for range in ranges {
        if range.start > range.end || range.end > bytes {
            return Some("a range that is not inside the vector");
        }
    }
    let is_whole = |bytes: usize| bytes.is_multiple_of(element.bytes());
    let all_whole = ranges.iter().all(|range| is_whole(range.start) && is_whole(range.end));
    (!all_whole || !is_whole(bytes)).then_some("a part of the vector that is no whole number of elements")
}

const OPERATIONS: [Operation; 6] =
    [Operation::Sum, Operation::Max, Operation::Min, Operation::And, Operation::Or, Operation::Xor];
const ELEMENTS: [Element; 6] =
    [Element::Float32, Element::Float16, Element::Bfloat16, Element::Int32, Element::Int64, Element::Byte];

impl Descriptor {
    pub(crate) fn to_words(&self) -> [u64; DESCRIPTOR_WORDS] {
        let mut words = [0; DESCRIPTOR_WORDS];
        let code = position(&OPERATIONS, &self.operation) * ELEMENTS.len() + position(&ELEMENTS, &self.element);
        let [input, output] = [self.input, self.output].map(place_to_words);
        let ranges = [&self.contributes, &self.receives].map(|range| [range.start as u64, range.end as u64]);
        let text = shorten(&self.description, DESCRIPTION_BYTES_MAX);
        words[..FIXED_WORDS].copy_from_slice(&[
            self.sequence,
            u64::from(self.tag) | (code as u64) << 32,
            self.divisor.to_bits().into(),
            self.bytes as u64,
            ranges[0][0],
            ranges[0][1],
            ranges[1][0],
            ranges[1][1],
            input[0],
            input[1],
            input[2],
            output[0],
            output[1],
            output[2],
            text.len() as u64,
        ]);
        for (word, bytes) in words[FIXED_WORDS..].iter_mut().zip(text.as_bytes().chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(padded);
        }
        words
    }

    /// What another rank wrote; an error says what makes no sense.
    pub(crate) fn from_words(words: &[u64; DESCRIPTOR_WORDS]) -> Result<Descriptor, &'static str> {
        let size = |index: usize| usize::try_from(words[index]).map_err(|_| "a size beyond the address space");
        let code = (words[1] >> 32) as usize;
        let operation = *OPERATIONS.get(code / ELEMENTS.len()).ok_or("an unknown operation")?;
        let text: Vec<u8> = words[FIXED_WORDS..].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let text_bytes = size(14)?.min(text.len());
        let descriptor = Descriptor {
            sequence: words[0],
            tag: words[1] as u32,
            operation,
            element: ELEMENTS[code % ELEMENTS.len()],
            divisor: f32::from_bits(words[2] as u32),
            bytes: size(3)?,
            contributes: size(4)?..size(5)?,
            receives: size(6)?..size(7)?,
            input: place_from_words(&words[8..11])?,
            output: place_from_words(&words[11..14])?,
            description: String::from_utf8_lossy(&text[..text_bytes]).into_owned(),
        };
        match range_problem(descriptor.bytes, descriptor.element, [&descriptor.contributes, &descriptor.receives]) {
            Some(problem) => Err(problem),
            None => descriptor.check_places().map(|()| descriptor),
        }
    }

    fn check_places(&self) -> Result<(), &'static str> {
        let fits = |place: Option<Place>, part: &Range<usize>| {
            place.is_none_or(|place| place.at.checked_add(part.len()).is_some_and(|end| end <= place.region_bytes))
        };
        let both_fit = fits(self.input, &self.contributes) && fits(self.output, &self.receives);
        if both_fit { Ok(()) } else { Err("memory beyond its region") }
    }

    /// True if both ranks called the same collective.
    pub(crate) fn agrees_with(&self, other: &Descriptor) -> bool {
        let same_operation = (self.operation, self.element) == (other.operation, other.element);
        let same_divisor = self.divisor.to_bits() == other.divisor.to_bits();
        (self.sequence, self.tag, self.bytes) == (other.sequence, other.tag, other.bytes)
            && same_operation
            && same_divisor
    }

    /// True if other ranks may read the input and write the output where they are.
    pub(crate) fn is_registered(&self) -> bool {
        (self.input.is_some() || self.contributes.is_empty()) && (self.output.is_some() || self.receives.is_empty())
    }
}

fn position<T: PartialEq>(all: &[T], one: &T) -> usize {
    all.iter().position(|candidate| candidate == one).expect("the table has all of them")
}

fn place_to_words(place: Option<Place>) -> [u64; 3] {
    place.map_or([NO_PLACE; 3], |place| [place.region_offset, place.region_bytes as u64, place.at as u64])
}

fn place_from_words(words: &[u64]) -> Result<Option<Place>, &'static str> {
    if words[0] == NO_PLACE {
        return Ok(None);
    }
    let size = |word: u64| usize::try_from(word).map_err(|_| "a region beyond the address space");
    Ok(Some(Place { region_offset: words[0], region_bytes: size(words[1])?, at: size(words[2])? }))
}

/// The start of `text`, at most `bytes_max` bytes of it.
pub(crate) fn shorten(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
