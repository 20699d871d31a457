//! What runs came to, kept in a folder, so that what was interrupted goes on where it stopped.
//!
//! A run is known by all that decides about it, and by the bytes of the program: another build runs all of them again.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A folder of finished runs, a file each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    folder: PathBuf,
    program: u64,
}

impl Kept {
    /// Makes the folder if it is not there.
    ///
    /// # Errors
    /// A folder that cannot be made, or a running program that cannot be read.
    pub fn open(folder: &Path) -> anyhow::Result<Kept> {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
        Ok(Kept { folder: folder.into(), program: program()? })
    }

    /// Where they are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A run's name: of everything that decides about its outcome, and this program.
    pub fn name(&self, parts: &[&[u8]]) -> String {
        let program = self.program.to_le_bytes();
        let parts: Vec<&[u8]> = parts.iter().copied().chain([&program[..]]).collect();
        format!("{:016x}", hash(&parts))
    }

    /// A run's file.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.json"))
    }

    /// A finished run, if it is there and whole.
    pub fn read<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_str(&std::fs::read_to_string(self.file(name)).ok()?).ok()
    }

    /// Keeps a finished run, whole or not at all.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write<T: Serialize>(&self, name: &str, run: &T) -> anyhow::Result<()> {
        let file = self.file(name);
        // By process: two that make the same run do not write into each other's.
        let beside = file.with_extension(format!("part{}", std::process::id()));
        let text = serde_json::to_string_pretty(run)? + "\n";
        let written = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, &file));
        written.with_context(|| format!("cannot write {}", file.display()))
    }
}

/// 64 bits (FNV-1a).
fn hash(parts: &[&[u8]]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    parts.iter().copied().flatten().fold(0xcbf2_9ce4_8422_2325, step)
}

/// What is running, as a number: of the bytes of its file, since a version is the same before and after a change of the simulator.
fn program() -> anyhow::Result<u64> {
    let path = program_file()?;
    let bytes = std::fs::read(&path)
        .with_context(|| format!("cannot read the running program, {path}: was it replaced? Start it again"))?;
    Ok(hash(&[&bytes]))
}

/// The file of the running program: the command, or Python's extension module.
///
/// # Errors
/// A system that does not tell.
pub fn program_file() -> anyhow::Result<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").context("cannot read /proc/self/maps")?;
    let path = file_of(&maps, program as *const () as usize);
    path.map(str::to_owned).context("cannot find the file of the running program")
}

/// The file that is mapped at an address.
fn file_of(maps: &str, address: usize) -> Option<&str> {
    let holds = |line: &&str| {
        let ends = line.split(' ').next().and_then(|range| range.split_once('-'));
        ends.is_some_and(|(start, end)| {
            let [start, end] = [start, end].map(|end| usize::from_str_radix(end, 16).unwrap_or(0));
            (start..end).contains(&address)
        })
    };
    let line = maps.lines().find(holds)?;
    line.find('/').map(|start| &line[start..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_program_is_known_by_its_file() {
        let maps = "7f10-7f20 r--p 00000000 fe:00 1 /lib/a b.so\n7f20-7f30 r-xp 00010000 fe:00 1 /lib/a b.so\n7f30-7f40 rw-p 0 0:0 0\n";
        assert_eq!(
            (file_of(maps, 0x7f2f), file_of(maps, 0x7f30), file_of(maps, 0x1)),
            (Some("/lib/a b.so"), None, None)
        );
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(program().unwrap(), hash(&[&own]));
    }

    #[test]
    fn runs_are_there_whole_or_not_at_all_and_not_for_another_program() {
        let folder = std::env::temp_dir().join(format!("fanin-kept-{}", std::process::id()));
        let kept = Kept::open(&folder).unwrap();
        let name = kept.name(&[b"scenario", b"seed"]);
        assert_eq!(kept.read::<Vec<f64>>(&name), None);
        kept.write(&name, &[1.5, 2.0]).unwrap();
        assert_eq!(kept.read(&name), Some(vec![1.5, 2.0]));
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
        let other = Kept { program: kept.program + 1, ..kept.clone() };
        assert_ne!(other.name(&[b"scenario", b"seed"]), name);
        std::fs::write(kept.file(&name), "[1.5, 2").unwrap();
        assert_eq!(kept.read::<Vec<f64>>(&name), None, "half a file is no run");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
