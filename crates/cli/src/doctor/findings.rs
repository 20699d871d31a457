//! What the doctor found, for people and for programs.

use serde::Serialize;

use super::jobs::JobReport;

/// What a finding means for the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Good,
    /// Not wrong, but worth knowing when times disappoint.
    Note,
    /// Wrong.
    Bad,
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
pub struct Finding {
    level: Level,
    about: &'static str,
    what: String,
    /// What to do; empty where there is nothing to do, or `what` says it.
    hint: String,
}

/// Everything.
#[derive(Debug, Default, Serialize)]
pub struct Findings {
    findings: Vec<Finding>,
    pub jobs: Vec<JobReport>,
}

/// The layout of `--json`.
#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    healthy: bool,
    /// What is wrong and what to do; one sentence when nothing is.
    verdict: Vec<String>,
    #[serde(flatten)]
    all: &'a Findings,
}

impl Findings {
    pub fn good(&mut self, about: &'static str, what: impl Into<String>) {
        self.add(Level::Good, about, what, "");
    }

    pub fn note(&mut self, about: &'static str, what: impl Into<String>, hint: impl Into<String>) {
        self.add(Level::Note, about, what, hint);
    }

    pub fn bad(&mut self, about: &'static str, what: impl Into<String>, hint: impl Into<String>) {
        self.add(Level::Bad, about, what, hint);
    }

    fn add(&mut self, level: Level, about: &'static str, what: impl Into<String>, hint: impl Into<String>) {
        self.findings.push(Finding { level, about, what: what.into(), hint: hint.into() });
    }

    pub fn is_healthy(&self) -> bool {
        self.findings.iter().all(|finding| finding.level != Level::Bad)
    }

    /// Prints the document, or the same for people.
    pub fn print(&self, json: bool) -> anyhow::Result<()> {
        if json {
            let document = Document { version: 1, healthy: self.is_healthy(), verdict: self.verdict(), all: self };
            println!("{}", serde_json::to_string_pretty(&document)?);
            return Ok(());
        }
        for finding in &self.findings {
            finding.print();
        }
        for job in &self.jobs {
            job.print();
        }
        println!();
        for sentence in self.verdict() {
            println!("{sentence}");
        }
        Ok(())
    }

    fn verdict(&self) -> Vec<String> {
        let bad = self.findings.iter().filter(|finding| finding.level == Level::Bad);
        let mut sentences: Vec<_> = bad.map(Finding::sentence).collect();
        if sentences.is_empty() {
            sentences.push("Nothing is wrong.".into());
        }
        sentences
    }
}

impl Finding {
    fn sentence(&self) -> String {
        let what = self.what.trim_end_matches('.');
        match self.hint.as_str() {
            "" => format!("WRONG: {}: {what}.", self.about),
            hint => format!("WRONG: {}: {what}. What to do: {}.", self.about, hint.trim_end_matches('.')),
        }
    }

    fn print(&self) {
        let mark = match self.level {
            Level::Good => "ok  ",
            Level::Note => "note",
            Level::Bad => "BAD ",
        };
        println!("{mark}  {:<15} {}", self.about, self.what);
        // The verdict repeats the hints of what is wrong.
        if self.level == Level::Note && !self.hint.is_empty() {
            println!("      {:<15} -> {}", "", self.hint);
        }
    }
}
