//! Recorded gradients, as `fanin.record` writes them: safetensors of float32, named `step-S/rank-R/PARAMETER`, one file per
//! rank in a folder. A single file may hold several ranks as well.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use serde_json::{Map, Value};

/// What the metadata's `content` says.
const CONTENT: &str = "fanin gradients 1";
/// What the format allows.
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// A training run's gradients, before they were summed.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    /// Name of the folder or file.
    pub label: String,
    /// In the order of training; at least one.
    pub steps: Vec<Step>,
}

/// One step of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Counted from 0, those that were not recorded included.
    pub number: u32,
    /// By rank, all parameters in a row, as many elements for each rank.
    pub ranks: Vec<Vec<f32>>,
}

/// One parameter of one rank at one step.
struct Part {
    parameter: String,
    values: Vec<f32>,
}

/// By step and rank.
type Parts = BTreeMap<u32, BTreeMap<u32, Vec<Part>>>;

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    data_offsets: [usize; 2],
}

impl Recording {
    /// Reads a file, or all `*.safetensors` of a folder.
    ///
    /// # Errors
    /// A file cannot be read or is not of `fanin.record`; ranks are missing or do not have the same parameters. The text names
    /// the file, or the step and the rank.
    pub fn read(path: &Path) -> anyhow::Result<Recording> {
        let mut parts = Parts::new();
        let mut world_size = 0;
        for file in files(path)? {
            let size = read_file(&file, &mut parts).with_context(|| format!("{} cannot be used", file.display()))?;
            world_size = world_size.max(size);
        }
        let label = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let steps = parts.into_iter().map(|(number, ranks)| step(number, ranks, world_size));
        let steps: Vec<Step> = steps.collect::<anyhow::Result<_>>().with_context(|| path.display().to_string())?;
        ensure!(!steps.is_empty(), "{} holds no gradients: record some steps with fanin.record", path.display());
        let lengths = |step: &Step| step.ranks[0].len();
        let first = lengths(&steps[0]);
        if let Some(other) = steps.iter().find(|step| lengths(step) != first) {
            bail!("{}: step {} has {} elements, the first {first}", path.display(), other.number, lengths(other));
        }
        Ok(Recording { label, steps })
    }

    /// Ranks of the run.
    pub fn rank_count(&self) -> usize {
        self.steps[0].ranks.len()
    }

    /// The largest magnitude of all.
    pub fn largest(&self) -> f32 {
        let all = self.steps.iter().flat_map(|step| step.ranks.iter().flatten());
        all.fold(0.0, |largest, value| largest.max(value.abs()))
    }
}

fn files(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))? {
        let file = entry?.path();
        if file.extension().is_some_and(|extension| extension == "safetensors") {
            found.push(file);
        }
    }
    ensure!(!found.is_empty(), "{} holds no *.safetensors: record gradients with fanin.record", path.display());
    found.sort();
    Ok(found)
}

/// Adds what a file holds; returns the number of ranks of the run.
fn read_file(file: &Path, parts: &mut Parts) -> anyhow::Result<usize> {
    let content = std::fs::read(file)?;
    let (header, data) = split(&content)?;
    let mut header: Map<String, Value> = serde_json::from_slice(header).context("its header is no JSON object")?;
    let metadata = header.remove("__metadata__").unwrap_or_default();
    let said = metadata["content"].as_str().unwrap_or("nothing");
    ensure!(said == CONTENT, "it says {said:?}, not {CONTENT:?}: record it with this release's fanin.record");
    let world_size = metadata["world_size"].as_str().and_then(|size| size.parse().ok());
    let mut entries = Vec::new();
    for (name, entry) in header {
        let entry: Entry = serde_json::from_value(entry).with_context(|| format!("tensor {name}"))?;
        ensure!(entry.dtype == "F32", "tensor {name} is {}, not F32", entry.dtype);
        entries.push((name, entry.data_offsets[0]..entry.data_offsets[1]));
    }
    // JSON objects have no order; the data has.
    entries.sort_by_key(|(_, range)| range.start);
    for (name, range) in entries {
        let (step, rank, parameter) =
            names_of(&name).with_context(|| format!("tensor {name} is not named step-S/rank-R/PARAMETER"))?;
        let values = floats(data, range).with_context(|| format!("tensor {name} lies outside of the file"))?;
        parts.entry(step).or_default().entry(rank).or_default().push(Part { parameter: parameter.into(), values });
    }
    world_size.context("its metadata does not say world_size")
}

/// Header and data of a safetensors file.
fn split(content: &[u8]) -> anyhow::Result<(&[u8], &[u8])> {
    let (length, rest) = content.split_first_chunk::<8>().context("it is shorter than eight bytes")?;
    let length = u64::from_le_bytes(*length);
    ensure!(length <= HEADER_BYTES_MAX && length <= rest.len() as u64, "it ends inside its header");
    Ok(rest.split_at(length as usize))
}

fn names_of(name: &str) -> Option<(u32, u32, &str)> {
    let (step, rest) = name.strip_prefix("step-")?.split_once("/rank-")?;
    let (rank, parameter) = rest.split_once('/')?;
    Some((step.parse().ok()?, rank.parse().ok()?, parameter))
}

fn floats(data: &[u8], range: Range<usize>) -> Option<Vec<f32>> {
    let bytes = data.get(range)?;
    let whole = bytes.len() % 4 == 0;
    whole.then(|| bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect())
}

fn step(number: u32, ranks: BTreeMap<u32, Vec<Part>>, world_size: usize) -> anyhow::Result<Step> {
    let missing = (0..world_size as u32).find(|rank| !ranks.contains_key(rank));
    if let Some(rank) = missing {
        bail!("step {number} lacks rank {rank} of {world_size}: put the files of all ranks into one folder");
    }
    ensure!(ranks.len() == world_size, "step {number} has {} ranks, the run {world_size}", ranks.len());
    let shape =
        |parts: &[Part]| parts.iter().map(|part| (part.parameter.clone(), part.values.len())).collect::<Vec<_>>();
    let first = shape(&ranks[&0]);
    if let Some((rank, _)) = ranks.iter().find(|(_, parts)| shape(parts) != first) {
        bail!(
            "at step {number} ranks 0 and {rank} have different parameters: record the same run with equal arguments"
        );
    }
    let joined = |parts: Vec<Part>| parts.into_iter().flat_map(|part| part.values).collect();
    Ok(Step { number, ranks: ranks.into_values().map(joined).collect() })
}
