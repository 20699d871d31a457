//! Memory that the ranks of a host can sum where it lies.

use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Zeroed memory from `Session.allocate`. numpy reads it through `__array_interface__` and keeps it alive.
#[pyclass(frozen, module = "fanin._fanin")]
pub struct Buffer {
    address: usize,
    /// Whether collectives on it need no copy.
    #[pyo3(get)]
    is_registered: bool,
    memory: fanin_host::Buffer,
}

impl Buffer {
    pub fn new(mut memory: fanin_host::Buffer) -> Buffer {
        // Neither kind of memory moves when its owner does.
        Buffer { address: memory.as_mut_ptr() as usize, is_registered: memory.is_registered(), memory }
    }
}

#[pymethods]
impl Buffer {
    /// Bytes, as numpy's protocol describes them.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("shape", (self.memory.len(),))?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("data", (self.address, false))?;
        interface.set_item("version", 3)?;
        Ok(interface)
    }
}
