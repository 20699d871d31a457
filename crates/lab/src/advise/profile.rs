//! A training step as the network sees it.

use std::path::Path;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

/// What a file's `content` says.
const CONTENT: &str = "fanin step 1";
/// More than any model has; a file with more is no recording.
const BUCKETS_MAX: usize = 1_000_000;
const STEP_SECONDS_MAX: f64 = 86_400.0;

/// Gradients that are reduced in one collective.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    /// Four for each element, whatever its type.
    pub bytes: u64,
    /// From the start of the step until the last gradient of the bucket has been computed, seconds.
    pub ready_seconds: f64,
}

/// When a step's gradients are ready, and what comes after them. `fanin.record_step` writes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// [`Profile::read`] accepts `fanin step 1`.
    content: String,
    /// What was trained.
    pub model: String,
    /// Steps that were recorded; the times are their medians.
    pub steps: u64,
    /// Ranks of the recorded run.
    pub world_size: u64,
    /// Bytes of an element of the gradients, as a ring sends them: 4, or 2 for float16 and bfloat16.
    pub element_bytes: u32,
    /// In the order in which they are reduced.
    pub buckets: Vec<Bucket>,
    /// From the last reduced bucket to the start of the next step (the optimizer, reading data), seconds.
    pub tail_seconds: f64,
    /// As it was recorded, seconds.
    pub step_seconds: f64,
    /// Part of it during which collectives were under way, seconds.
    pub communication_seconds: f64,
}

impl Profile {
    /// A profile that was not recorded: `step_seconds` and `communication_seconds` are 0.
    pub fn new(model: impl Into<String>, world_size: u64, buckets: Vec<Bucket>, tail_seconds: f64) -> Profile {
        Profile {
            content: CONTENT.into(),
            model: model.into(),
            steps: 0,
            world_size,
            element_bytes: 4,
            buckets,
            tail_seconds,
            step_seconds: 0.0,
            communication_seconds: 0.0,
        }
    }

    /// Reads a file of `fanin.record_step`.
    ///
    /// # Errors
    /// The file cannot be read, or is not what `fanin.record_step` writes; the message says which value.
    pub fn read(path: &Path) -> anyhow::Result<Profile> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    fn parse(text: &str) -> anyhow::Result<Profile> {
        let profile: Profile =
            serde_json::from_str(text).context("this is no recorded step; fanin.record_step makes one")?;
        let Profile { content, buckets, .. } = &profile;
        ensure!(content == CONTENT, "it holds {content:?}, not {CONTENT:?}: record the step with this release");
        let element_bytes = profile.element_bytes;
        ensure!(matches!(element_bytes, 2 | 4), "element_bytes is {element_bytes}: gradients have 4 or 2");
        ensure!(!buckets.is_empty(), "it has no bucket: no gradient was reduced while the step was recorded");
        ensure!(buckets.len() <= BUCKETS_MAX, "it has {} buckets, which no step has", buckets.len());
        for (k, bucket) in buckets.iter().enumerate() {
            ensure!(bucket.bytes > 0, "bucket {k} has no bytes");
            check_time(&format!("ready_seconds of bucket {k}"), bucket.ready_seconds)?;
        }
        check_time("tail_seconds", profile.tail_seconds)?;
        Ok(profile)
    }

    /// Bytes of all buckets.
    pub fn bytes(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.bytes).sum()
    }

    /// Without any network: until the last gradient, and what follows, seconds.
    pub fn compute_seconds(&self) -> f64 {
        self.last_ready_seconds() + self.tail_seconds
    }

    /// When the last gradient is ready, seconds.
    pub fn last_ready_seconds(&self) -> f64 {
        self.buckets.iter().map(|bucket| bucket.ready_seconds).fold(0.0, f64::max)
    }
}

fn check_time(what: &str, seconds: f64) -> anyhow::Result<()> {
    ensure!((0.0..=STEP_SECONDS_MAX).contains(&seconds), "{what} is {seconds}: a time within a day is expected");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(change: impl FnOnce(&mut serde_json::Value)) -> String {
        let bucket = Bucket { bytes: 4, ready_seconds: 0.5 };
        let mut value = serde_json::to_value(Profile::new("m", 2, vec![bucket], 0.1)).unwrap();
        change(&mut value);
        value.to_string()
    }

    fn why(text: &str) -> String {
        format!("{:#}", Profile::parse(text).unwrap_err())
    }

    #[test]
    fn what_was_written_is_read() {
        let profile = Profile::parse(&json(|_| {})).unwrap();
        assert_eq!((profile.bytes(), profile.compute_seconds()), (4, 0.6));
    }

    #[test]
    fn what_is_no_recorded_step_is_refused_by_name() {
        assert!(why("{}").contains("fanin.record_step"));
        assert!(why(&json(|v| v["content"] = "fanin step 9".into())).contains("with this release"));
        assert!(why(&json(|v| v["buckets"] = serde_json::json!([]))).contains("no bucket"));
        assert!(why(&json(|v| v["buckets"][0]["bytes"] = 0.into())).contains("bucket 0 has no bytes"));
        assert!(why(&json(|v| v["buckets"][0]["ready_seconds"] = (-1.0).into())).contains("ready_seconds of bucket 0"));
        assert!(why(&json(|v| v["element_bytes"] = 3.into())).contains("element_bytes is 3"));
        assert!(why(&json(|v| v["tail_seconds"] = 1e9.into())).contains("tail_seconds"));
    }
}
