//! Registered memory: where it is in this process and in the others.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use crate::Error;
use crate::call::Place;
use crate::shared::{REGION_ALIGN, Shared};
use crate::sys::{self, Mapping};

/// Memory that all ranks of a group can reach, so that collectives on it need no copy through a stage. Zero at first.
///
/// It may outlive its group. When a collective fails, its output's region becomes private memory of this process at the
/// same address with the same content, because slower ranks may still write their part of the result.
pub struct Region {
    shared: Arc<Shared>,
    book: Arc<RegionBook>,
    map: Arc<Mapping>,
    offset: u64,
    bytes: usize,
}

impl Region {
    pub(crate) fn new(shared: &Arc<Shared>, book: &Arc<RegionBook>, bytes: usize) -> Result<Region, Error> {
        let bytes = bytes.max(1);
        let mapped = bytes
            .checked_next_multiple_of(sys::page_bytes())
            .ok_or_else(|| Error::Call(format!("a region of {bytes} bytes is more than the address space")))?;
        let offset = shared.extend_file(mapped)?;
        let map = Mapping::new(shared.file(), offset, mapped).map_err(Error::system("map registered memory"))?;
        let map = Arc::new(map);
        book.lock().push(Entry { map: Arc::clone(&map), offset });
        Ok(Region { shared: Arc::clone(shared), book: Arc::clone(book), map, offset, bytes })
    }

    /// First byte, at a page boundary.
    pub fn as_ptr(&self) -> *mut u8 {
        self.map.base()
    }

    /// Length, bytes.
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.bytes
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.book.lock().retain(|entry| entry.offset != self.offset);
        // If it fails, the memory is free when the last process lets go of the file.
        let _ = sys::release(self.shared.file(), self.offset, self.map.bytes());
    }
}

/// The regions of this process.
#[derive(Default)]
pub(crate) struct RegionBook {
    entries: Mutex<Vec<Entry>>,
}

struct Entry {
    map: Arc<Mapping>,
    offset: u64,
}

impl RegionBook {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Entry>> {
        // The list is whole between any two statements, also if a thread panicked.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where `bytes` bytes at `start` are registered, if they are.
    pub(crate) fn find(&self, start: *const u8, bytes: usize) -> Option<Place> {
        if bytes == 0 {
            return None;
        }
        self.lock().iter().find_map(|entry| {
            let at = start.addr().checked_sub(entry.map.base().addr())?;
            let fits = at.checked_add(bytes)? <= entry.map.bytes();
            fits.then_some(Place { region_offset: entry.offset, region_bytes: entry.map.bytes(), at })
        })
    }

    /// Makes the region at `place` private to this process; it is registered no longer.
    pub(crate) fn detach(&self, shared: &Shared, place: Place) -> Result<(), Error> {
        let mut entries = self.lock();
        let Some(index) = entries.iter().position(|entry| entry.offset == place.region_offset) else { return Ok(()) };
        let entry = entries.swap_remove(index);
        entry.map.detach(shared.file(), entry.offset).map_err(Error::system("detach registered memory"))
    }
}

/// The regions of other ranks that this process has mapped, the latest used last.
#[derive(Default)]
pub(crate) struct Neighbours {
    maps: VecDeque<(u64, Mapping)>,
}

/// Regions of others that stay mapped from one collective to the next.
const MAPS_KEPT: usize = 256;

impl Neighbours {
    /// Lets go of the regions that were not used for the longest time. Ends what [`Neighbours::resolve`] gave.
    pub(crate) fn trim(&mut self) {
        let excess = self.maps.len().saturating_sub(MAPS_KEPT);
        self.maps.drain(..excess);
    }

    /// Where `place` of `rank` is in this process.
    pub(crate) fn resolve(&mut self, shared: &Shared, rank: usize, place: Place) -> Result<*mut u8, Error> {
        let is_known =
            |(offset, map): &(u64, Mapping)| *offset == place.region_offset && map.bytes() == place.region_bytes;
        let entry = match self.maps.iter().position(is_known) {
            Some(index) => self.maps.remove(index).expect("just found"),
            None => (place.region_offset, map_region(shared, rank, place)?),
        };
        let start = entry.1.base().wrapping_add(place.at);
        self.maps.push_back(entry);
        Ok(start)
    }
}

fn map_region(shared: &Shared, rank: usize, place: Place) -> Result<Mapping, Error> {
    let file_bytes = sys::file_bytes(shared.file()).map_err(Error::system("look at registered memory"))?;
    let end = place.region_offset.checked_add(place.region_bytes as u64);
    let is_region = place.region_offset >= shared.regions_start()
        && place.region_offset.is_multiple_of(REGION_ALIGN)
        && end.is_some_and(|end| end <= file_bytes);
    if !is_region {
        let problem = format!("a region of {} bytes at {}", place.region_bytes, place.region_offset);
        return Err(Error::Corrupt { rank: rank as u16, problem });
    }
    Mapping::new(shared.file(), place.region_offset, place.region_bytes)
        .map_err(Error::system("map registered memory of another rank"))
}
