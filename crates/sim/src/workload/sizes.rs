//! Flow sizes: published tables, and sizes of one's own.

use std::sync::Arc;

use anyhow::{bail, ensure};
use fanin_link::Random;

use super::unit;

/// Points of a cumulative distribution: bytes, and the share of flows that are no longer.
type Points = &'static [(f64, f64)];

/// Web search (DCTCP paper's cluster, as TrafficGenerator and HPCC carry it); mean 1.711 MB.
const WEBSEARCH: Points = &[
    (0.0, 0.0),
    (10e3, 0.15),
    (20e3, 0.20),
    (30e3, 0.30),
    (50e3, 0.40),
    (80e3, 0.53),
    (200e3, 0.60),
    (1e6, 0.70),
    (2e6, 0.80),
    (5e6, 0.90),
    (10e6, 0.97),
    (30e6, 1.0),
];

/// Data mining (VL2 paper's cluster, as TrafficGenerator carries it); mean 12.66 MB.
const DATAMINING: Points = &[
    (100.0, 0.0),
    (180.0, 0.1),
    (216.0, 0.2),
    (560.0, 0.3),
    (900.0, 0.4),
    (1100.0, 0.5),
    (1870.0, 0.6),
    (3160.0, 0.7),
    (10e3, 0.8),
    (400e3, 0.9),
    (3.16e6, 0.95),
    (100e6, 0.98),
    (1e9, 1.0),
];

/// Names of the tables in here.
pub const NAMES: [&str; 2] = ["websearch", "datamining"];

/// A cumulative distribution, linear between its points.
#[derive(Clone, Debug, PartialEq)]
pub struct SizeTable {
    points: Vec<(f64, f64)>,
}

impl SizeTable {
    /// A published table by its name.
    ///
    /// # Errors
    /// For another name; it lists those that there are.
    pub fn named(name: &str) -> anyhow::Result<SizeTable> {
        let points = match name {
            "websearch" => WEBSEARCH,
            "datamining" => DATAMINING,
            _ => bail!("no flow sizes are called {name:?}; there are: {}, or a list of points", NAMES.join(", ")),
        };
        SizeTable::new(points.to_vec())
    }

    /// A table of one's own: (bytes, share of flows that are no longer), both growing, the last share 1.
    ///
    /// # Errors
    /// What is wrong with the points.
    pub fn new(mut points: Vec<(f64, f64)>) -> anyhow::Result<SizeTable> {
        ensure!(!points.is_empty(), "a table of sizes needs at least one point [bytes, share]");
        ensure!(points.iter().flat_map(|&(bytes, share)| [bytes, share]).all(f64::is_finite), "sizes must be numbers");
        if points[0].1 > 0.0 {
            points.insert(0, (points[0].0.min(1.0), 0.0));
        }
        let grows = points.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 <= pair[1].1);
        ensure!(grows && points[0].0 >= 0.0, "both numbers of [bytes, share] must grow from point to point");
        let last = points[points.len() - 1];
        ensure!(last.1 == 1.0 && last.0 >= 1.0, "the last point's share must be 1, and its size at least a byte");
        Ok(SizeTable { points })
    }

    /// Mean size.
    pub fn mean_bytes(&self) -> f64 {
        self.points.windows(2).map(|pair| (pair[1].1 - pair[0].1) * (pair[0].0 + pair[1].0) / 2.0).sum()
    }

    fn at(&self, share: f64) -> f64 {
        let above = self.points.partition_point(|point| point.1 < share).clamp(1, self.points.len() - 1);
        let (low, high) = (self.points[above - 1], self.points[above]);
        if high.1 == low.1 {
            return high.0;
        }
        low.0 + (high.0 - low.0) * (share - low.1) / (high.1 - low.1)
    }
}

/// Where a stream's sizes come from.
#[derive(Clone, Debug)]
pub enum Sizes {
    /// All alike.
    Fixed(u64),
    /// From a table.
    Table(Arc<SizeTable>),
}

impl Sizes {
    /// Mean size.
    pub fn mean_bytes(&self) -> f64 {
        match self {
            Sizes::Fixed(bytes) => *bytes as f64,
            Sizes::Table(table) => table.mean_bytes(),
        }
    }

    /// One size, at least a byte.
    pub fn draw(&self, random: &mut Random) -> u64 {
        match self {
            Sizes::Fixed(bytes) => *bytes,
            Sizes::Table(table) => (table.at(unit(random)) as u64).max(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_tables_have_their_published_means() {
        let mean = |name| SizeTable::named(name).unwrap().mean_bytes();
        assert!((mean("websearch") / 1.711e6 - 1.0).abs() < 0.001, "{}", mean("websearch"));
        assert!((mean("datamining") / 12.66e6 - 1.0).abs() < 0.002, "{}", mean("datamining"));
    }

    #[test]
    fn what_is_drawn_follows_the_table() {
        let table = SizeTable::named("websearch").unwrap();
        let sizes = Sizes::Table(Arc::new(table.clone()));
        let mut random = Random::new(7);
        let drawn: Vec<u64> = (0..200_000).map(|_| sizes.draw(&mut random)).collect();
        for (bytes, share) in table.points.iter().skip(1) {
            let below = drawn.iter().filter(|&&size| size as f64 <= *bytes).count() as f64 / drawn.len() as f64;
            assert!((below - share).abs() < 0.005, "{bytes}: {below}, not {share}");
        }
    }

    #[test]
    fn points_that_make_no_distribution_are_refused() {
        let bad = [vec![], vec![(10.0, 0.5)], vec![(10.0, 0.5), (5.0, 1.0)], vec![(f64::NAN, 1.0)], vec![(0.0, 1.0)]];
        for points in bad {
            assert!(SizeTable::new(points.clone()).is_err(), "{points:?}");
        }
        assert!(SizeTable::named("webserch").unwrap_err().to_string().contains("websearch"));
    }
}
