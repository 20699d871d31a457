//! `fanin bench results`: files of results as one page.

mod document;
mod goals;
mod page;
mod summary;

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

use super::output::write;

/// Flags of `fanin bench results`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Folder of the files that `--json` wrote; a plot of the same name beside one is shown with it.
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Page to write, in Markdown. Default: standard output.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Page in which to replace what stands between the markers `<!-- numbers -->` and `<!-- /numbers -->`.
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,
}

/// Writes the page. Nothing on it was typed: a goal without a result says so.
pub fn run(arguments: &Arguments) -> anyhow::Result<i32> {
    let documents = document::read(&arguments.folder)?;
    let links = match arguments.out.as_ref().and_then(|out| out.parent()) {
        Some(parent) => arguments.folder.strip_prefix(parent).unwrap_or(&arguments.folder),
        None => &arguments.folder,
    };
    let text = page::write(&documents, links);
    match &arguments.out {
        Some(file) => write(file, &text)?,
        None => print!("{text}"),
    }
    if let Some(file) = &arguments.summary {
        let page = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        write(file, &summary::fill_in(&page, &documents)?)?;
    }
    Ok(0)
}
