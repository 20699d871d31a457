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
    /// Names and lengths of the parameters, in the order of the steps' elements.
    pub parameters: Vec<(String, usize)>,
    /// In the order of training; at least one.
    pub steps: Vec<Step>,
    /// What of the files is left out and why, a sentence each.
    pub notes: Vec<String>,
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
    /// Steps that not all ranks have, as after a lost rank, are left out, and [`Recording::notes`] say so.
    ///
    /// # Errors
    /// A file cannot be read or is not of `fanin.record`; no step has all ranks, or ranks do not have the same parameters. The
    /// text names the file, or the step and the rank.
    pub fn read(path: &Path) -> anyhow::Result<Recording> {
        let mut parts = Parts::new();
        let mut world_size = 0;
        for file in files(path)? {
            let size = read_file(&file, &mut parts).with_context(|| format!("{} cannot be used", file.display()))?;
            world_size = world_size.max(size);
        }
        let label = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        Recording::assemble(label, parts, world_size).with_context(|| path.display().to_string())
    }

    fn assemble(label: String, mut parts: Parts, world_size: usize) -> anyhow::Result<Recording> {
        let notes = keep_common_steps(&mut parts, world_size)?;
        let Some((_, ranks)) = parts.first_key_value() else {
            bail!("it holds no gradients: record some steps with fanin.record");
        };
        let parameters = ranks.values().next().map(|parts| shape(parts)).unwrap_or_default();
        let steps = parts.into_iter().map(|(number, ranks)| step(number, ranks, &parameters));
        let steps = steps.collect::<anyhow::Result<_>>()?;
        Ok(Recording { label, parameters, steps, notes })
    }

    /// Ranks of the run.
    pub fn rank_count(&self) -> usize {
        self.steps[0].ranks.len()
    }

    /// [`Recording::notes`], each behind the recording's name.
    pub fn labelled_notes(&self) -> Vec<String> {
        self.notes.iter().map(|note| format!("{}: {note}", self.label)).collect()
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

/// Drops the steps that not all ranks have; says which, and who lacks them.
fn keep_common_steps(parts: &mut Parts, world_size: usize) -> anyhow::Result<Vec<String>> {
    let mut lacking = BTreeMap::<u32, Vec<u32>>::new();
    for (&step, ranks) in parts.iter() {
        if let Some((rank, _)) = ranks.iter().find(|(rank, _)| **rank as usize >= world_size) {
            bail!("step {step} has rank {rank}, the run {world_size} ranks: keep one run's files in a folder");
        }
        for rank in (0..world_size as u32).filter(|rank| !ranks.contains_key(rank)) {
            lacking.entry(rank).or_default().push(step);
        }
    }
    let all = parts.len();
    parts.retain(|_, ranks| ranks.len() == world_size);
    if let (true, Some((rank, steps))) = (parts.is_empty(), lacking.first_key_value()) {
        bail!("step {} lacks rank {rank} of {world_size}: put the files of all ranks into one folder", steps[0]);
    }
    let note = |(rank, steps): (&u32, &Vec<u32>)| {
        format!("{} of {all} steps are left out, for rank {rank} did not record them: {}", steps.len(), listed(steps))
    };
    Ok(lacking.iter().map(note).collect())
}

/// The first few.
fn listed(steps: &[u32]) -> String {
    let shown: Vec<String> = steps.iter().take(8).map(u32::to_string).collect();
    let rest = if steps.len() > shown.len() { ", ..." } else { "" };
    shown.join(", ") + rest
}

fn shape(parts: &[Part]) -> Vec<(String, usize)> {
    parts.iter().map(|part| (part.parameter.clone(), part.values.len())).collect()
}

fn step(number: u32, ranks: BTreeMap<u32, Vec<Part>>, parameters: &[(String, usize)]) -> anyhow::Result<Step> {
    if let Some((rank, _)) = ranks.iter().find(|(_, parts)| shape(parts) != parameters) {
        bail!(
            "rank {rank} has other parameters at step {number} than the first rank at the first step: record the same run with \
             equal arguments"
        );
    }
    let joined = |parts: Vec<Part>| parts.into_iter().flat_map(|part| part.values).collect();
    Ok(Step { number, ranks: ranks.into_values().map(joined).collect() })
}
