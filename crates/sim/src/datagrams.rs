//! The bytes of datagrams under way: places of one size that are used again, so that a packet costs no allocation.

/// The name of a datagram while it is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramId(u32);

impl DatagramId {
    /// As packets carry it.
    pub fn raw(self) -> u32 {
        self.0
    }

    /// From a packet.
    pub fn from_raw(raw: u32) -> DatagramId {
        DatagramId(raw)
    }
}

/// All datagrams under way in one thread's part of a network.
#[derive(Clone, Debug)]
pub struct Datagrams {
    stride: usize,
    bytes: Vec<u8>,
    lengths: Vec<u16>,
    /// Deliveries that are still to come of each.
    shares: Vec<u16>,
    free: Vec<u32>,
}

impl Datagrams {
    /// Room for datagrams of up to `stride` bytes.
    pub fn new(stride: usize) -> Datagrams {
        Datagrams { stride, bytes: Vec::new(), lengths: Vec::new(), shares: Vec::new(), free: Vec::new() }
    }

    /// Keeps a datagram until it was released `shares` times.
    pub fn put(&mut self, datagram: &[u8], shares: u16) -> DatagramId {
        let id = self.free.pop().unwrap_or_else(|| {
            self.bytes.resize(self.bytes.len() + self.stride, 0);
            self.lengths.push(0);
            self.shares.push(0);
            (self.lengths.len() - 1) as u32
        });
        let first = id as usize * self.stride;
        self.bytes[first..first + datagram.len()].copy_from_slice(datagram);
        self.lengths[id as usize] = datagram.len() as u16;
        self.shares[id as usize] = shares;
        DatagramId(id)
    }

    /// A datagram's bytes.
    pub fn get(&self, id: DatagramId) -> &[u8] {
        let first = id.0 as usize * self.stride;
        &self.bytes[first..first + usize::from(self.lengths[id.0 as usize])]
    }

    /// One delivery less to come.
    pub fn release(&mut self, id: DatagramId) {
        let shares = &mut self.shares[id.0 as usize];
        *shares -= 1;
        if *shares == 0 {
            self.free.push(id.0);
        }
    }

    /// Most bytes of a datagram.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Datagrams under way.
    pub fn count(&self) -> usize {
        self.lengths.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_used_again_when_the_last_delivery_was_made() {
        let mut datagrams = Datagrams::new(8);
        let first = datagrams.put(&[1, 2, 3], 2);
        datagrams.release(first);
        let second = datagrams.put(&[4], 1);
        assert_ne!(first, second);
        assert_eq!((datagrams.get(first), datagrams.get(second)), (&[1, 2, 3][..], &[4][..]));
        datagrams.release(first);
        assert_eq!(datagrams.put(&[5, 6], 1), first);
        assert_eq!((datagrams.get(first), datagrams.count()), (&[5, 6][..], 2));
    }
}
