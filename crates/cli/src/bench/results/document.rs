//! Files of results, and finding a case in them.

use std::path::Path;

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::bench::output::LAYOUT_VERSION;

/// One file.
pub struct Document {
    /// Its name without the end.
    pub name: String,
    pub value: Value,
    /// Whether a plot lies beside it.
    pub has_plot: bool,
}

/// Ranks that all talk to the switch.
pub const UDP: &str = "udp";
pub use crate::bench::fleet::{REGISTERED_MEMORY, SHARED_MEMORY};

/// Which all-reduce a goal is about.
#[derive(Clone, Copy)]
pub struct Wanted {
    pub benchmarks: &'static [&'static str],
    pub ranks: u64,
    pub size_bytes: u64,
    /// `None`: loopback.
    pub rate_bps: Option<u64>,
}

/// Reads every file of a folder, by name.
///
/// # Errors
/// A folder without files, and the file that is not one of results.
pub fn read(folder: &Path) -> anyhow::Result<Vec<Document>> {
    let mut documents = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry.with_context(|| format!("cannot list {}", folder.display()))?.path();
        if path.extension().is_some_and(|end| end == "json") {
            documents.push(Document::read(&path)?);
        }
    }
    ensure!(!documents.is_empty(), "no results in {}: write some with --json", folder.display());
    documents.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(documents)
}

impl Document {
    fn read(path: &Path) -> anyhow::Result<Document> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let value: Value = serde_json::from_str(&text).with_context(|| format!("{} is not JSON", path.display()))?;
        ensure!(
            value["version"] == LAYOUT_VERSION,
            "{} has layout {}, not {LAYOUT_VERSION}: measure it again with this version",
            path.display(),
            value["version"]
        );
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Document { name, value, has_plot: path.with_extension("svg").exists() })
    }

    /// Which benchmark wrote it.
    pub fn benchmark(&self) -> &str {
        self.value["benchmark"].as_str().unwrap_or_default()
    }

    /// The cases; of a benchmark with parts, those of one part.
    pub fn cases(&self, part: Option<&str>) -> &[Value] {
        let cases = part.map_or(&self.value["cases"], |part| &self.value["cases"][part]);
        cases.as_array().map_or(&[], Vec::as_slice)
    }
}

impl Wanted {
    /// The first case of float32 that is wanted, and the file it is in.
    pub fn find<'a>(&self, documents: &'a [Document]) -> Option<(&'a Document, &'a Value)> {
        let matches = |case: &Value| {
            case["ranks"] == self.ranks
                && case["size_bytes"] == self.size_bytes
                && case["dtype"] == "float32"
                && case["link_rate_bps"].as_u64() == self.rate_bps
        };
        let documents = documents.iter().filter(|document| self.benchmarks.contains(&document.benchmark()));
        documents
            .filter_map(|document| Some((document, document.cases(None).iter().find(|case| matches(case))?)))
            .next()
    }
}

/// A baseline's series by its name.
pub fn baseline<'a>(case: &'a Value, name: &str) -> Option<&'a Value> {
    case["series"].as_array()?.iter().find(|series| series["name"] == name)
}

/// fanin's series without loss by how its bytes got to the other ranks and how
/// floats travelled.
pub fn fanin<'a>(case: &'a Value, transport: &str, format: &str) -> Option<&'a Value> {
    case["series"].as_array()?.iter().find(|series| {
        let fanin = &series["fanin"];
        fanin["joined"]["transport"] == transport && fanin["element_format"] == format && fanin["loss"] == 0.0
    })
}

/// Median of `time` over `reference`, of the same rounds.
pub fn ratio(time: &Value, reference: &Value) -> Option<f64> {
    let rounds = |series: &Value| -> Option<Vec<u64>> {
        series["times"]["rounds_ns"].as_array()?.iter().map(Value::as_u64).collect()
    };
    Some(crate::bench::statistics::median_ratio(&rounds(time)?, &rounds(reference)?))
}
