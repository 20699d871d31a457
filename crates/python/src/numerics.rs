//! Accumulators on tensors of one process, for experiments: no session, no network.

use fanin_lab::numerics::{Accumulator as Kind, Summer, parse_format};
use fanin_numeric::Telemetry;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict};

/// One way of adding tensors; counts what it meets.
#[pyclass(module = "fanin._fanin")]
pub struct Accumulator {
    summer: Summer,
    telemetry: Telemetry,
}

#[pymethods]
impl Accumulator {
    #[new]
    fn new(name: &str, dtype: &str, workers: usize) -> PyResult<Accumulator> {
        let kind: Kind = name.parse().map_err(refused)?;
        let summer = kind.prepare(parse_format(dtype).map_err(refused)?, workers).map_err(refused)?;
        Ok(Accumulator { summer, telemetry: Telemetry::default() })
    }

    /// The sum of tensors, each as the bytes of little-endian float32, as such bytes.
    fn sum<'py>(&mut self, py: Python<'py>, tensors: Vec<PyBackedBytes>) -> PyResult<Bound<'py, PyBytes>> {
        let Accumulator { summer, telemetry } = self;
        let total = py.detach(|| {
            let tensors: Vec<Vec<f32>> = tensors.iter().map(|bytes| floats(bytes)).collect();
            let mut total = vec![0.0; tensors.first().map_or(0, Vec::len)];
            let parts: Vec<&[f32]> = tensors.iter().map(Vec::as_slice).collect();
            summer.sum(&parts, &mut total, telemetry).map(|()| total)
        });
        let total = total.map_err(refused)?;
        Ok(PyBytes::new(py, &total.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>()))
    }

    /// Additions and read-outs by cause.
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        causes(py, &self.telemetry)
    }
}

/// Additions and read-outs by cause.
pub fn causes<'py>(py: Python<'py>, telemetry: &Telemetry) -> PyResult<Bound<'py, PyDict>> {
    let counts = PyDict::new(py);
    let Telemetry { overflow, saturation, overwrite, left_shift, flushed_to_zero, lost_bits } = *telemetry;
    counts.set_item("overflow", overflow)?;
    counts.set_item("saturation", saturation)?;
    counts.set_item("overwrite", overwrite)?;
    counts.set_item("left_shift", left_shift)?;
    counts.set_item("flushed_to_zero", flushed_to_zero)?;
    counts.set_item("lost_bits", lost_bits)?;
    Ok(counts)
}

/// Names of all accumulators.
#[pyfunction]
pub fn accumulator_names() -> Vec<&'static str> {
    Kind::ALL.map(Kind::name).to_vec()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

fn refused(error: anyhow::Error) -> PyErr {
    PyValueError::new_err(format!("{error:#}"))
}
