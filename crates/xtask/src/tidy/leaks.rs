//! Nothing of the machine that a change was made on goes into the tree.

use super::SourceFile;

/// Folders that exist on somebody's machine only. Written in two halves, so that this file does not breach its own rule.
const MACHINE_FOLDERS: &[&str] =
    &[concat!("/wo", "rk/"), concat!("/fa", "rm/"), concat!("/ho", "me/"), concat!("/Use", "rs/")];

/// The public registries; any other host in a lock file is somebody's mirror.
const REGISTRIES: &[&str] =
    &["github.com", "index.crates.io", "static.crates.io", "pypi.org", "files.pythonhosted.org", "registry.npmjs.org"];

/// Breaches in one file.
pub fn check(file: &SourceFile) -> Vec<String> {
    let mut breaches = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let place = format!("{}:{}", file.path, index + 1);
        if let Some(folder) = MACHINE_FOLDERS.iter().find(|folder| names_folder(line, folder)) {
            breaches.push(format!(
                "{place}: a path of one machine (`{folder}`): name it from the repository's root, or ask for it"
            ));
        }
        if is_lock_file(&file.path)
            && let Some(host) = host_in(line).filter(|host| !REGISTRIES.contains(host))
        {
            breaches
                .push(format!("{place}: `{host}` is not a public registry: make the lock file anew without a mirror"));
        }
    }
    breaches
}

/// True if `line` has `folder` as the start of an absolute path.
fn names_folder(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(position, _)| {
        let before = line[..position].chars().next_back();
        let after = line[position + folder.len()..].chars().next();
        let starts = !before.is_some_and(|letter| letter.is_alphanumeric() || "._-}/)*~>".contains(letter));
        starts && after.is_some_and(|letter| letter.is_ascii_lowercase() || letter == '.')
    })
}

fn is_lock_file(path: &str) -> bool {
    ["Cargo.lock", "uv.lock", "package-lock.json"].iter().any(|name| path.ends_with(name))
        || path.ends_with("requirements.txt")
}

fn host_in(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("://")?;
    rest.split(|letter: char| !(letter.is_alphanumeric() || ".-".contains(letter))).next()
}
