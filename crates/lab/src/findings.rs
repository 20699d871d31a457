//! What an experiment found, for tables, files and drawings.

use serde::Serialize;

/// One quantity, the paper's beside ours.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// What was measured.
    pub quantity: String,
    /// The paper's number, or what it says.
    pub paper: String,
    /// Ours.
    pub ours: String,
    /// Why they differ, in a sentence; empty where they do not.
    pub remark: String,
    /// Whether the paper's claim holds here; `None` where there is none, or nothing was measured that could break it.
    pub holds: Option<bool>,
}

impl Row {
    /// A row without a remark. Without a number or words of the paper, or a goal in their place, nothing is there to hold.
    pub fn new(quantity: impl Into<String>, paper: impl Into<String>, ours: impl Into<String>, holds: bool) -> Row {
        let paper = paper.into();
        let holds = (!paper.is_empty()).then_some(holds);
        Row { quantity: quantity.into(), paper, ours: ours.into(), remark: String::new(), holds }
    }

    /// The same where the paper's words are shown beside ours and nothing is compared.
    pub fn unjudged(self) -> Row {
        Row { holds: None, ..self }
    }

    /// The same with a remark.
    pub fn because(self, remark: impl Into<String>) -> Row {
        Row { remark: remark.into(), ..self }
    }
}

/// Numbers for a file of comma-separated values.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sheet {
    /// Part of the file's name.
    pub name: String,
    /// Names of the columns, with units.
    pub columns: Vec<String>,
    /// As many numbers a row as there are columns.
    pub rows: Vec<Vec<f64>>,
}

/// A drawing.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plot {
    /// Part of the file's name.
    pub name: String,
    /// Above the drawing.
    pub title: String,
    /// What x is, with its unit.
    pub x_label: String,
    /// What y is, with its unit.
    pub y_label: String,
    /// A logarithmic x axis.
    pub is_x_log: bool,
    /// Named lines.
    pub lines: Vec<(String, Vec<(f64, f64)>)>,
}

/// What an experiment found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Findings {
    /// Name of the experiment.
    pub experiment: String,
    /// What it shows.
    pub title: String,
    /// On what it ran, in a sentence.
    pub place: String,
    /// The paper beside ours.
    pub rows: Vec<Row>,
    /// What is modelled, scaled or left out.
    pub notes: Vec<String>,
    /// All numbers.
    pub sheets: Vec<Sheet>,
    /// The same drawn.
    pub plots: Vec<Plot>,
    /// Packets that arrived somewhere, over all runs.
    pub hops: u64,
}

/// A cell of comma-separated values, in quotes where it has to be (RFC 4180).
pub fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.into() }
}

impl Sheet {
    /// The sheet as comma-separated values, with a line of names.
    pub fn to_csv(&self) -> String {
        let line = |row: &Vec<f64>| row.iter().map(|value| format!("{value}")).collect::<Vec<_>>().join(",");
        let rows: String = self.rows.iter().map(|row| line(row) + "\n").collect();
        let names: Vec<String> = self.columns.iter().map(|name| quoted(name)).collect();
        format!("{}\n{rows}", names.join(","))
    }

    /// A line for each column but the first, over the first.
    pub fn lines(&self) -> Vec<(String, Vec<(f64, f64)>)> {
        let column = |place: usize| self.rows.iter().map(|row| (row[0], row[place])).collect();
        (1..self.columns.len()).map(|place| (self.columns[place].clone(), column(place))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_without_a_claim_hold_nothing() {
        assert_eq!(["3", ""].map(|paper| Row::new("cores", paper, "2", true).holds), [Some(true), None]);
        assert_eq!(Row::new("cores", "3", "2", false).unjudged().holds, None);
    }

    #[test]
    fn names_with_commas_stay_one_column() {
        let columns = ["long flows", "PANAMA, ms", "\"both\""].map(String::from).into();
        let sheet = Sheet { name: "latency".into(), columns, rows: vec![vec![0.0, 1.5, 2.0]] };
        assert_eq!(sheet.to_csv(), "long flows,\"PANAMA, ms\",\"\"\"both\"\"\"\n0,1.5,2\n");
    }
}
