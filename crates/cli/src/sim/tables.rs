//! Tables by columns, as CSV or Parquet.

use std::fmt::Write;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use clap::ValueEnum;
use fanin_lab::findings::quoted;
use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::Type;

use crate::bench::output::write;

/// What tables are written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Text that everything reads.
    Csv,
    /// Columns with their types, Snappy-compressed, reals with all their digits: for pandas, Polars, DuckDB and their like.
    Parquet,
}

/// Columns of one length, and a name.
pub struct Table {
    name: &'static str,
    columns: Vec<(String, Values)>,
}

enum Values {
    Integers(Cells<i64>),
    /// With so many decimals in CSV.
    Reals(Cells<f64>, usize),
    Texts(Vec<String>),
}

/// Some may lack a value where that `is_optional`.
struct Cells<T> {
    cells: Vec<Option<T>>,
    is_optional: bool,
}

impl<T: Clone> Cells<T> {
    /// The values that there are, and by row whether it has one, as Parquet has optional columns.
    fn known(&self) -> (Vec<T>, Option<Vec<i16>>) {
        let levels = || self.cells.iter().map(|cell| cell.is_some().into()).collect();
        (self.cells.iter().flatten().cloned().collect(), self.is_optional.then(levels))
    }
}

impl Table {
    pub fn new(name: &'static str) -> Table {
        Table { name, columns: Vec::new() }
    }

    /// Counts, bytes or picoseconds: an hour of the latter is far below 2^63.
    pub fn integers(self, name: &str, values: impl Iterator<Item = u64>) -> Table {
        let cells = values.map(|value| Some(integer(value))).collect();
        self.with(name, Values::Integers(Cells { cells, is_optional: false }))
    }

    /// The same, empty in CSV and null in Parquet where there is none.
    pub fn integers_where_known(self, name: &str, values: impl Iterator<Item = Option<u64>>) -> Table {
        let cells = values.map(|value| value.map(integer)).collect();
        self.with(name, Values::Integers(Cells { cells, is_optional: true }))
    }

    pub fn reals(self, name: &str, decimals: usize, values: impl Iterator<Item = f64>) -> Table {
        self.with(name, Values::Reals(Cells { cells: values.map(Some).collect(), is_optional: false }, decimals))
    }

    /// The same, empty in CSV and null in Parquet where there is none.
    pub fn reals_where_known(self, name: &str, decimals: usize, values: impl Iterator<Item = Option<f64>>) -> Table {
        self.with(name, Values::Reals(Cells { cells: values.collect(), is_optional: true }, decimals))
    }

    pub fn texts(self, name: &str, values: impl Iterator<Item = String>) -> Table {
        self.with(name, Values::Texts(values.collect()))
    }

    fn with(mut self, name: &str, values: Values) -> Table {
        self.columns.push((name.into(), values));
        self
    }

    /// Writes `NAME.csv` or `NAME.parquet` into a folder.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write_to(&self, folder: &Path, format: Format) -> anyhow::Result<()> {
        match format {
            Format::Csv => write(&folder.join(format!("{}.csv", self.name)), &self.to_csv()),
            Format::Parquet => {
                let file = folder.join(format!("{}.parquet", self.name));
                self.write_parquet(&file).with_context(|| format!("cannot write {}", file.display()))
            }
        }
    }

    fn to_csv(&self) -> String {
        let names: Vec<String> = self.columns.iter().map(|(name, _)| quoted(name)).collect();
        let mut text = names.join(",") + "\n";
        for row in 0..self.columns.first().map_or(0, |(_, values)| values.len()) {
            for (place, (_, values)) in self.columns.iter().enumerate() {
                text.push_str(if place > 0 { "," } else { "" });
                let _ = match values {
                    Values::Integers(values) => values.cells[row].map_or(Ok(()), |value| write!(text, "{value}")),
                    Values::Reals(values, decimals) => {
                        values.cells[row].map_or(Ok(()), |value| write!(text, "{value:.decimals$}"))
                    }
                    Values::Texts(values) => write!(text, "{}", quoted(&values[row])),
                };
            }
            text.push('\n');
        }
        text
    }

    fn write_parquet(&self, file: &Path) -> anyhow::Result<()> {
        let fields = self.columns.iter().map(|(name, values)| values.field(name)).collect::<Result<_, _>>()?;
        let schema = Arc::new(Type::group_type_builder(self.name).with_fields(fields).build()?);
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
        let mut writer = SerializedFileWriter::new(File::create(file)?, schema, Arc::new(properties))?;
        let mut rows = writer.next_row_group()?;
        for (_, values) in &self.columns {
            let mut column = rows.next_column()?.context("fewer columns than the schema has")?;
            values.write_to(&mut column)?;
            column.close()?;
        }
        rows.close()?;
        writer.close()?;
        Ok(())
    }
}

impl Values {
    fn len(&self) -> usize {
        match self {
            Values::Integers(values) => values.cells.len(),
            Values::Reals(values, _) => values.cells.len(),
            Values::Texts(values) => values.len(),
        }
    }

    fn field(&self, name: &str) -> Result<Arc<Type>, parquet::errors::ParquetError> {
        let (physical, logical, is_optional) = match self {
            Values::Integers(values) => (Physical::INT64, None, values.is_optional),
            Values::Reals(values, _) => (Physical::DOUBLE, None, values.is_optional),
            Values::Texts(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String), false),
        };
        let repetition = if is_optional { Repetition::OPTIONAL } else { Repetition::REQUIRED };
        let field = Type::primitive_type_builder(name, physical).with_repetition(repetition);
        field.with_logical_type(logical).build().map(Arc::new)
    }

    fn write_to(&self, column: &mut SerializedColumnWriter<'_>) -> Result<usize, parquet::errors::ParquetError> {
        match self {
            Values::Integers(values) => {
                let (known, levels) = values.known();
                column.typed::<Int64Type>().write_batch(&known, levels.as_deref(), None)
            }
            Values::Reals(values, _) => {
                let (known, levels) = values.known();
                column.typed::<DoubleType>().write_batch(&known, levels.as_deref(), None)
            }
            Values::Texts(values) => {
                let values: Vec<ByteArray> = values.iter().map(|text| text.as_str().into()).collect();
                column.typed::<ByteArrayType>().write_batch(&values, None, None)
            }
        }
    }
}

fn integer(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;

    use super::*;

    fn table() -> Table {
        let table = Table::new("runs").integers("time_ps", [3_600_000_000_000_000, 0].into_iter());
        let names = ["plain", "with, \"both\""].map(String::from);
        table.reals("share", 2, [1.0 / 3.0, 2.0].into_iter()).texts("name", names.into_iter())
    }

    #[test]
    fn csv_rounds_and_quotes() {
        let rows = "time_ps,share,name\n3600000000000000,0.33,plain\n0,2.00,\"with, \"\"both\"\"\"\n";
        assert_eq!(table().to_csv(), rows);
    }

    #[test]
    fn what_is_not_known_is_empty_or_null() {
        let table = || {
            let bytes = [Some(7), None].into_iter();
            Table::new("gaps").integers_where_known("bytes", bytes).reals_where_known(
                "share",
                1,
                [None, Some(0.5)].into_iter(),
            )
        };
        assert_eq!(table().to_csv(), "bytes,share\n7,\n,0.5\n");
        let folder = std::env::temp_dir().join(format!("fanin-tables-gaps-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        table().write_to(&folder, Format::Parquet).unwrap();
        let file = SerializedFileReader::new(File::open(folder.join("gaps.parquet")).unwrap()).unwrap();
        let fields =
            |row: Result<parquet::record::Row, _>| row.unwrap().into_columns().into_iter().map(|(_, field)| field);
        let rows: Vec<Vec<Field>> = file.get_row_iter(None).unwrap().map(|row| fields(row).collect()).collect();
        assert_eq!(rows, [[Field::Long(7), Field::Null], [Field::Null, Field::Double(0.5)]]);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn parquet_reads_back_with_types_and_all_digits() {
        let folder = std::env::temp_dir().join(format!("fanin-tables-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        table().write_to(&folder, Format::Parquet).unwrap();
        Table::new("runs-none").integers("time_ps", std::iter::empty()).write_to(&folder, Format::Parquet).unwrap();
        let read = |name: &str| SerializedFileReader::new(File::open(folder.join(name)).unwrap()).unwrap();
        let rows: Vec<Vec<(String, Field)>> =
            read("runs.parquet").get_row_iter(None).unwrap().map(|row| row.unwrap().into_columns()).collect();
        let row = |time, share, name: &str| {
            let fields = [Field::Long(time), Field::Double(share), Field::Str(name.into())];
            ["time_ps", "share", "name"].map(String::from).into_iter().zip(fields).collect::<Vec<_>>()
        };
        let expected = [row(3_600_000_000_000_000, 1.0 / 3.0, "plain"), row(0, 2.0, "with, \"both\"")];
        assert_eq!(rows, expected);
        assert_eq!(read("runs-none.parquet").metadata().file_metadata().num_rows(), 0);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
