//! Values by handle; places are used again, handles are not.

const GENERATION_BITS: u32 = 8;

/// Names a place and the value that was put there: a stale handle finds nothing until the place has been used 256 times more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(u32);

impl Handle {
    /// Of nothing.
    pub const NONE: Handle = Handle(u32::MAX);

    /// As packets carry it.
    pub fn raw(self) -> u32 {
        self.0
    }

    /// From a packet.
    pub fn from_raw(raw: u32) -> Handle {
        Handle(raw)
    }

    /// True for [`Handle::NONE`].
    pub fn is_none(self) -> bool {
        self == Handle::NONE
    }

    fn slot(self) -> usize {
        (self.0 >> GENERATION_BITS) as usize
    }
}

#[derive(Debug)]
struct Place<T> {
    generation: u8,
    value: Option<T>,
}

/// A growing table; what is removed makes room for what comes.
#[derive(Debug)]
pub struct Table<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Table<T> {
    /// Puts a value somewhere.
    pub fn insert(&mut self, value: T) -> Handle {
        self.insert_with(|_| value)
    }

    /// The same for a value that knows its handle.
    pub fn insert_with(&mut self, make: impl FnOnce(Handle) -> T) -> Handle {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: 0, value: None });
            self.places.len() as u32 - 1
        });
        // The last slot's handles could be NONE.
        assert!(slot < u32::MAX >> GENERATION_BITS, "a host has at most 16,777,214 flows at a time");
        let place = &mut self.places[slot as usize];
        let handle = Handle(slot << GENERATION_BITS | u32::from(place.generation));
        place.value = Some(make(handle));
        handle
    }

    /// The value, if it is still there.
    #[inline]
    pub fn get(&self, handle: Handle) -> Option<&T> {
        let place = self.places.get(handle.slot())?;
        if u32::from(place.generation) != handle.0 & 0xff { None } else { place.value.as_ref() }
    }

    /// The value, if it is still there.
    #[inline]
    pub fn get_mut(&mut self, handle: Handle) -> Option<&mut T> {
        let place = self.places.get_mut(handle.slot())?;
        if u32::from(place.generation) != handle.0 & 0xff { None } else { place.value.as_mut() }
    }

    /// Takes the value out.
    pub fn remove(&mut self, handle: Handle) -> Option<T> {
        let place = self.places.get_mut(handle.slot())?;
        if u32::from(place.generation) != handle.0 & 0xff {
            return None;
        }
        let value = place.value.take()?;
        place.generation = place.generation.wrapping_add(1);
        self.free.push(handle.slot() as u32);
        Some(value)
    }

    /// All values with their handles, by place.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Handle, &mut T)> {
        let handle = |slot: usize, generation: u8| Handle((slot as u32) << GENERATION_BITS | u32::from(generation));
        let places = self.places.iter_mut().enumerate();
        places.filter_map(move |(slot, place)| Some((handle(slot, place.generation), place.value.as_mut()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_used_again_under_another_handle() {
        let mut table = Table::default();
        let first = table.insert('a');
        assert_eq!(table.remove(first), Some('a'));
        let second = table.insert('b');
        assert_eq!(first.slot(), second.slot());
        assert_eq!(table.get_mut(first), None);
        assert_eq!(table.remove(first), None);
        assert_eq!(table.get_mut(second), Some(&mut 'b'));
        assert_eq!(table.get_mut(Handle::NONE), None);
    }
}
