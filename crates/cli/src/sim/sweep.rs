//! `fanin sim sweep`: one scenario with other values and other seeds, on all processors; what is there already is not run again.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, anyhow, bail, ensure};
use clap::Args;
use fanin_lab::findings::quoted;
use fanin_lab::kept::{Kept, program_file};
use fanin_sim::scenario::Scenario;
use serde::{Deserialize, Serialize};
use toml::Value;

use super::ray::{self, Plan, PlannedRun};
use super::{Run, run_scenario};
use crate::bench::fleet::python;
use crate::bench::output::write;

/// More runs than that are hardly meant.
const RUN_COUNT_MAX: usize = 100_000;

/// Flags of `fanin sim sweep`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// TOML file of a scenario.
    file: PathBuf,
    /// Key and values, such as links.queue_kib=256,1024 or job.scheme=ring,switchml; a name between stands for all sections
    /// of that name, job.0.scheme for the first. Again for another key: all combinations are run.
    #[arg(long = "set", value_name = "KEY=VALUE,...")]
    sets: Vec<String>,
    /// Seeds from the scenario's on.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    seeds: u32,
    /// Runs at a time; without, as many as there are processors.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Make the runs on a Ray cluster, by its address, or `auto` for the one that this machine is in. Needs Python with fanin and Ray, and the
    /// same build of fanin on every machine of it.
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["jobs", "run"])]
    ray: Option<String>,
    /// Make only the run of this name in DIR/runs, and no table: what --ray starts on the cluster's machines.
    #[arg(long, value_name = "NAME")]
    run: Option<String>,
    /// Folder for sweep.csv and a report for each run.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// One run to be made.
#[derive(Clone, Debug)]
struct Task {
    /// The values set, in the order of the keys.
    values: Vec<String>,
    seed: u64,
    scenario: Scenario,
    /// Of everything that decides about the outcome, this program included.
    name: String,
}

/// What sweep.csv says of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Figures {
    flows_completed: u64,
    /// Nothing where no flow ended, as in all of these.
    fct_mean_us: Option<f64>,
    fct_p50_us: Option<f64>,
    fct_p99_us: Option<f64>,
    short_fct_p99_us: Option<f64>,
    goodput_bps: f64,
    iterations: usize,
    /// In none of the means.
    jobs_without_iteration: usize,
    /// Over jobs that came to the end of an iteration, each with its own mean; nothing if none did.
    iteration_mean_ms: Option<f64>,
    /// The same of the part of summing that computing does not hide.
    communication_mean_ms: Option<f64>,
    marked: u64,
    dropped: u64,
    corrupted: u64,
    pauses: u64,
    packet_hops: u64,
    digest: String,
}

const COLUMNS: &str = "flows_completed,fct_mean_us,fct_p50_us,fct_p99_us,fct_10kb_100kb_p99_us,goodput_bps,iterations,jobs_without_iteration,\
                       iteration_mean_ms,communication_mean_ms,marked,dropped,corrupted,pauses,packet_hops,digest";
/// Of the class of flows from 10 kB.
const SHORT_BYTES: u64 = 100_000;

/// Runs what is missing.
pub fn run(arguments: &Arguments) -> anyhow::Result<i32> {
    let text = std::fs::read_to_string(&arguments.file)
        .with_context(|| format!("cannot read {}", arguments.file.display()))?;
    let context = || arguments.file.display().to_string();
    let sets = arguments.sets.iter().map(|set| Set::parse(set)).collect::<anyhow::Result<Vec<_>>>()?;
    check_columns(&sets, arguments.seeds)?;
    let kept = Kept::open(&arguments.out.join("runs"))?;
    let tasks = tasks(&text, &sets, arguments.seeds, &kept).with_context(context)?;
    if let Some(name) = &arguments.run {
        let own = tasks.iter().find(|task| task.name == *name);
        let task = own.with_context(|| {
            format!("no run of this sweep is called {name} here: every machine needs the same build of fanin")
        })?;
        return run_one(task, &kept).map(|()| 0);
    }
    let missing = missing(&tasks, &kept);
    eprintln!("{} runs, of which {} are still to be made", tasks.len(), missing.len());
    if let Some(address) = &arguments.ray {
        let plan = Plan::new(text, arguments, &missing, kept.folder())?;
        ray::run_all(address, &plan)?;
    } else {
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
        run_all(&missing, &kept, arguments.jobs.map_or(processors, usize::from))?;
    }
    let keys: Vec<&str> = sets.iter().map(|set| set.key.as_str()).collect();
    let file = arguments.out.join("sweep.csv");
    write(&file, &table(&tasks, &keys, &kept)?)?;
    println!("{}", file.display());
    Ok(0)
}

impl Plan {
    fn new(scenario: String, arguments: &Arguments, missing: &[&Task], folder: &Path) -> anyhow::Result<Plan> {
        let program = program_file()?;
        // Within Python it is the extension module that runs.
        let is_module = program.ends_with(".so");
        let command =
            if is_module { [&*absolute(&python())?, "-m", "fanin"].map(String::from).into() } else { vec![program] };
        let sets = arguments.sets.iter().flat_map(|set| ["--set".into(), set.clone()]);
        let runs = missing.iter().map(|task| PlannedRun {
            name: task.name.clone(),
            label: format!("{} seed {}", task.values.join(", "), task.seed),
        });
        Ok(Plan {
            command,
            scenario,
            arguments: sets.chain(["--seeds".into(), arguments.seeds.to_string()]).collect(),
            runs: runs.collect(),
            folder: folder.to_string_lossy().into_owned(),
        })
    }
}

/// Tasks run in folders of their own; a name without a folder is looked up where they run.
fn absolute(program: &OsStr) -> anyhow::Result<String> {
    let path = Path::new(program);
    let path = if path.components().count() > 1 { std::path::absolute(path)? } else { path.into() };
    path.into_os_string().into_string().map_err(|path| anyhow!("{}: not UTF-8", path.display()))
}

/// A key and what it is set to.
#[derive(Clone, Debug, PartialEq)]
struct Set {
    key: String,
    values: Vec<String>,
}

impl Set {
    fn parse(text: &str) -> anyhow::Result<Set> {
        let (key, values) = text.split_once('=').with_context(|| format!("--set {text}: KEY=VALUE,VALUE,..."))?;
        let values: Vec<String> = split(values).into_iter().map(|value| value.trim().to_string()).collect();
        ensure!(!key.is_empty() && values.iter().all(|value| !value.is_empty()), "--set {text}: a key and values");
        Ok(Set { key: key.trim().into(), values })
    }
}

/// Each key is a column of sweep.csv, beside those that it has anyway.
fn check_columns(sets: &[Set], seeds: u32) -> anyhow::Result<()> {
    for (place, Set { key, .. }) in sets.iter().enumerate() {
        ensure!(
            sets[..place].iter().all(|other| other.key != *key),
            "--set {key}: twice; give all values after one --set"
        );
        ensure!(key != "seed" || seeds == 1, "--set seed and --seeds: give one of them");
    }
    Ok(())
}

/// At commas that are not within brackets or quotes.
fn split(text: &str) -> Vec<&str> {
    let (mut depth, mut quoted, mut start, mut parts) = (0i32, false, 0, Vec::new());
    for (place, letter) in text.char_indices() {
        match letter {
            '"' => quoted = !quoted,
            '[' | '{' if !quoted => depth += 1,
            ']' | '}' if !quoted => depth -= 1,
            ',' if !quoted && depth == 0 => {
                parts.push(&text[start..place]);
                start = place + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// All combinations with all seeds; the last key changes first.
fn tasks(text: &str, sets: &[Set], seeds: u32, kept: &Kept) -> anyhow::Result<Vec<Task>> {
    let document: Value = toml::from_str(text).context("this is no scenario")?;
    let combinations = sets.iter().map(|set| set.values.len()).product::<usize>();
    let count = combinations.saturating_mul(seeds as usize);
    ensure!(count <= RUN_COUNT_MAX, "{count} runs: at most {RUN_COUNT_MAX}");
    let mut tasks = Vec::new();
    for combination in 0..combinations {
        let (mut rest, mut changed, mut values) = (combination, document.clone(), Vec::new());
        for set in sets.iter().rev() {
            let value = &set.values[rest % set.values.len()];
            rest /= set.values.len();
            let path: Vec<&str> = set.key.split('.').collect();
            change(&mut changed, &path, &parse(value)).with_context(|| format!("--set {}={value}", set.key))?;
            values.insert(0, value.clone());
        }
        let text = toml::to_string(&changed).context("values that no file can hold")?;
        let scenario = Scenario::parse(&text).with_context(|| values.join(", "))?;
        for step in 0..u64::from(seeds) {
            let seed = scenario.seed + step;
            let name = kept.name(&[text.as_bytes(), &seed.to_le_bytes()]);
            tasks.push(Task { values: values.clone(), seed, scenario: Scenario { seed, ..scenario.clone() }, name });
        }
    }
    Ok(tasks)
}

/// As TOML, or else as a text.
fn parse(value: &str) -> Value {
    let document = toml::from_str::<toml::Table>(&format!("value = {value}"));
    document.ok().and_then(|mut table| table.remove("value")).unwrap_or_else(|| Value::String(value.into()))
}

fn change(value: &mut Value, path: &[&str], new: &Value) -> anyhow::Result<()> {
    let Some((name, rest)) = path.split_first() else {
        *value = new.clone();
        return Ok(());
    };
    match value {
        Value::Table(table) if rest.is_empty() => {
            table.insert((*name).to_string(), new.clone());
            Ok(())
        }
        Value::Table(table) => {
            let inner = table.entry(*name).or_insert_with(|| Value::Table(toml::Table::new()));
            change(inner, rest, new)
        }
        Value::Array(sections) => match name.parse::<usize>() {
            Ok(place) => {
                let count = sections.len();
                let section = sections.get_mut(place).with_context(|| format!("section {place} of {count}"))?;
                change(section, rest, new)
            }
            Err(_) => sections.iter_mut().try_for_each(|section| change(section, path, new)),
        },
        _ => bail!("{name} would be a key in a value that has none"),
    }
}

/// What is still to be run, each once, even if a value was given twice.
fn missing<'t>(tasks: &'t [Task], kept: &Kept) -> Vec<&'t Task> {
    let mut seen = BTreeSet::new();
    tasks.iter().filter(|task| seen.insert(task.name.as_str()) && read(kept, task).is_none()).collect()
}

fn read(kept: &Kept, task: &Task) -> Option<Figures> {
    kept.read(&task.name)
}

/// On so many threads; the first failure ends all.
fn run_all(tasks: &[&Task], kept: &Kept, threads: usize) -> anyhow::Result<()> {
    let (next, done, failure) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(None));
    let work = || {
        while let Some(task) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = run_one(task, kept).with_context(|| format!("{} seed {}", task.values.join(", "), task.seed));
            match outcome {
                Ok(()) => eprintln!(
                    "{} of {}: {} seed {}",
                    done.fetch_add(1, Ordering::Relaxed) + 1,
                    tasks.len(),
                    task.values.join(", "),
                    task.seed
                ),
                Err(error) => {
                    failure.lock().unwrap_or_else(|broken| broken.into_inner()).get_or_insert(error);
                    next.store(tasks.len(), Ordering::Relaxed);
                }
            }
        }
    };
    std::thread::scope(|scope| (0..threads.min(tasks.len())).for_each(|_| drop(scope.spawn(work))));
    match failure.into_inner().unwrap_or_else(|broken| broken.into_inner()) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

fn run_one(task: &Task, kept: &Kept) -> anyhow::Result<()> {
    let run = run_scenario(task.scenario.clone(), 1, |_| true)?.run;
    kept.write(&task.name, &Figures::new(&run))
}

impl Figures {
    fn new(run: &Run) -> Figures {
        let report = &run.report;
        let all = report.classes.last();
        let short = report.classes.iter().find(|class| class.bytes_max == SHORT_BYTES);
        let done: Vec<_> = report.jobs.iter().filter(|job| job.iterations > 0).collect();
        let mean = |part: fn(&fanin_sim::report::JobReport) -> Option<f64>| {
            let sum = done.iter().filter_map(|job| part(job)).fold(0.0, |sum, each| sum + each);
            (!done.is_empty()).then(|| sum / done.len() as f64)
        };
        Figures {
            flows_completed: report.flows_completed,
            fct_mean_us: all.and_then(|class| class.mean_us),
            fct_p50_us: all.and_then(|class| class.p50_us),
            fct_p99_us: all.and_then(|class| class.p99_us),
            short_fct_p99_us: short.and_then(|class| class.p99_us),
            goodput_bps: report.goodput_bps,
            iterations: report.jobs.iter().map(|job| job.iterations).sum(),
            jobs_without_iteration: report.jobs.len() - done.len(),
            iteration_mean_ms: mean(|job| job.mean_ms),
            communication_mean_ms: mean(|job| job.communication_ms),
            marked: report.marked,
            dropped: report.dropped,
            corrupted: report.corrupted,
            pauses: report.pauses,
            packet_hops: report.packet_hops,
            digest: report.digest.clone(),
        }
    }

    fn row(&self) -> String {
        let ms = |mean: Option<f64>| mean.map_or_else(String::new, |ms| format!("{ms:.6}"));
        let us = |time: Option<f64>| time.map_or_else(String::new, |us| format!("{us:.3}"));
        format!(
            "{},{},{},{},{},{:.0},{},{},{},{},{},{},{},{},{},{}",
            self.flows_completed,
            us(self.fct_mean_us),
            us(self.fct_p50_us),
            us(self.fct_p99_us),
            us(self.short_fct_p99_us),
            self.goodput_bps,
            self.iterations,
            self.jobs_without_iteration,
            ms(self.iteration_mean_ms),
            ms(self.communication_mean_ms),
            self.marked,
            self.dropped,
            self.corrupted,
            self.pauses,
            self.packet_hops,
            self.digest
        )
    }
}

fn table(tasks: &[Task], keys: &[&str], kept: &Kept) -> anyhow::Result<String> {
    // A seed that is set has its column anyway: the last one.
    let is_shown = |key: &&str| *key != "seed";
    let names: String = keys.iter().filter(|key| is_shown(key)).map(|key| quoted(key) + ",").collect();
    let mut text = format!("{names}seed,{COLUMNS}\n");
    for task in tasks {
        let figures = read(kept, task).ok_or_else(|| anyhow!("{} is gone", kept.file(&task.name).display()))?;
        let shown = keys.iter().zip(&task.values).filter(|(key, _)| is_shown(key));
        let values: String = shown.map(|(_, value)| quoted(value) + ",").collect();
        text += &format!("{values}{},{}\n", task.seed, figures.row());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "duration_ms = 0.2\n[topology]\nshape = 'star'\nhosts = 6\n[[job]]\nbytes = 20000\ncompute_ms = 0.0\n\
                        workers = 3\nscheme = 'ring'\n[[job]]\nbytes = 20000\ncompute_ms = 0.0\nworkers = 3\nscheme = 'ideal'";

    fn kept(name: &str) -> Kept {
        Kept::open(&std::env::temp_dir().join(format!("fanin-sweep-{name}-{}", std::process::id()))).unwrap()
    }

    fn sets(texts: &[&str]) -> Vec<Set> {
        texts.iter().map(|text| Set::parse(text).unwrap()).collect()
    }

    #[test]
    fn all_combinations_with_all_seeds_have_names_of_their_own() {
        let sets = sets(&["job.scheme=ring,switchml", "links.queue_kib=64,128", "job.0.workers=[2, 3]"]);
        let tasks = tasks(TEXT, &sets, 2, &kept("names")).unwrap();
        assert_eq!(tasks.len(), 8);
        assert_eq!((tasks[0].values.join(" "), tasks[1].seed), ("ring 64 [2, 3]".into(), 2));
        assert_eq!(tasks[7].values, ["switchml", "128", "[2, 3]"]);
        let mut names: Vec<&str> = tasks.iter().map(|task| task.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 8);
        assert!(tasks[7].scenario.jobs.iter().all(|job| job.scheme.to_string() == "switchml"), "all sections");
        assert_eq!(tasks[7].scenario.links.queue_kib, 128);
    }

    #[test]
    fn a_value_that_is_given_twice_is_one_run() {
        let kept = kept("twice");
        let tasks = tasks(TEXT, &sets(&["job.0.scheme=ring,switchml,ring"]), 2, &kept).unwrap();
        let names = |tasks: &[&Task]| tasks.iter().map(|task| (task.values[0].clone(), task.seed)).collect::<Vec<_>>();
        let once = [("ring", 1), ("ring", 2), ("switchml", 1), ("switchml", 2)].map(|(way, seed)| (way.into(), seed));
        assert_eq!((tasks.len(), names(&missing(&tasks, &kept))), (6, once.to_vec()));
        std::fs::remove_dir_all(kept.folder()).unwrap();
    }

    #[test]
    fn no_column_is_there_twice() {
        let kept = kept("columns");
        let seeds = sets(&["links.queue_kib=64", "seed=3,5"]);
        let tasks = tasks(TEXT, &seeds, 1, &kept).unwrap();
        run_all(&tasks.iter().collect::<Vec<_>>(), &kept, 2).unwrap();
        let text = table(&tasks, &["links.queue_kib", "seed"], &kept).unwrap();
        let starts: Vec<&str> = text.lines().map(|line| &line[..line.match_indices(',').nth(1).unwrap().0]).collect();
        assert_eq!(starts, ["links.queue_kib,seed", "64,3", "64,5"]);
        assert!(check_columns(&seeds, 1).is_ok() && check_columns(&seeds, 2).is_err());
        assert!(check_columns(&sets(&["links.gbps=1", "links.gbps=2"]), 1).is_err());
        std::fs::remove_dir_all(kept.folder()).unwrap();
    }

    #[test]
    fn what_cannot_be_set_is_said() {
        for (set, word) in [
            ("job.7.workers=3", "section 7"),
            ("links.speed=3", "speed"),
            ("duration_ms.x=1", "none"),
            ("job.scheme=x", "x"),
        ] {
            let error = tasks(TEXT, &sets(&[set]), 1, &kept("unset")).expect_err(set);
            assert!(format!("{error:#}").contains(word), "{error:#}");
        }
        assert!(Set::parse("links.gbps").is_err() && Set::parse("links.gbps=").is_err());
    }

    #[test]
    fn a_python_by_its_path_is_found_from_any_folder() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(absolute(OsStr::new(".venv/bin/python")).unwrap(), here.join(".venv/bin/python").to_string_lossy());
        assert_eq!(absolute(OsStr::new("/usr/bin/python3")).unwrap(), "/usr/bin/python3");
        assert_eq!(absolute(OsStr::new("python3")).unwrap(), "python3");
    }

    #[test]
    fn a_cluster_is_told_how_to_make_each_run() {
        let folder = std::env::temp_dir().join(format!("fanin-sweep-plan-{}", std::process::id()));
        let file = folder.join("scenario.toml");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(&file, TEXT).unwrap();
        let sets = vec!["job.0.scheme=ring,switchml".to_owned()];
        let out = folder.join("out");
        let arguments = Arguments { file, sets, seeds: 1, jobs: None, ray: None, run: None, out: out.clone() };
        let parsed = [Set::parse(&arguments.sets[0]).unwrap()];
        let tasks = tasks(TEXT, &parsed, 1, &Kept::open(&out.join("runs")).unwrap()).unwrap();
        let plan = Plan::new(TEXT.into(), &arguments, &[&tasks[1]], &out.join("runs")).unwrap();
        assert_eq!((plan.runs.len(), plan.runs[0].label.as_str()), (1, "switchml seed 1"));
        assert_eq!(plan.arguments, ["--set", "job.0.scheme=ring,switchml", "--seeds", "1"]);
        assert_eq!(plan.command, [std::env::current_exe().unwrap().to_str().unwrap()]);
        // As another machine does it.
        assert_eq!(run(&Arguments { run: Some(plan.runs[0].name.clone()), ..arguments }).unwrap(), 0);
        assert!(read(&Kept::open(&out.join("runs")).unwrap(), &tasks[1]).is_some() && !out.join("sweep.csv").exists());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_job_that_ends_no_iteration_is_counted() {
        let text = TEXT.replacen("compute_ms = 0.0", "compute_ms = 9.0", 1);
        let run = run_scenario(Scenario::parse(&text).unwrap(), 1, |_| true).unwrap().run;
        let figures = Figures::new(&run);
        assert_eq!((figures.jobs_without_iteration, figures.iterations > 0), (1, true));
        assert_eq!(figures.row().split(',').count(), COLUMNS.split(',').count());
        assert!(figures.iteration_mean_ms.is_some_and(|ms| ms > 0.0));
        let none = Figures::new(
            &run_scenario(Scenario::parse(&text.replace("= 0.0", "= 9.0")).unwrap(), 1, |_| true).unwrap().run,
        );
        assert_eq!((none.jobs_without_iteration, none.iteration_mean_ms, none.communication_mean_ms), (2, None, None));
        assert!(none.row().contains(",2,,,"), "no number is not 0: {}", none.row());
        assert!(none.row().starts_with("0,,,,,0,"), "nor where no flow ended: {}", none.row());
    }

    #[test]
    fn what_is_there_is_not_run_again() {
        let kept = kept("again");
        let tasks = tasks(TEXT, &sets(&["job.0.scheme=ring,switchml"]), 2, &kept).unwrap();
        let all: Vec<&Task> = tasks.iter().collect();
        assert_eq!(missing(&tasks, &kept).len(), 4);
        run_all(&all, &kept, 2).unwrap();
        assert!(missing(&tasks, &kept).is_empty());
        let table_first = table(&tasks, &["job.0.scheme"], &kept).unwrap();
        assert_eq!(table_first.lines().count(), 5);
        assert!(table_first.lines().nth(3).is_some_and(|row| row.starts_with("switchml,1,")), "{table_first}");
        let is_there = |task: &&Task| read(&kept, task).is_some();
        assert!(all.iter().all(is_there));
        write(&kept.file(&tasks[2].name), "{ \"flows_comp").unwrap();
        assert!(!is_there(&&tasks[2]), "half a file is no run");
        run_all(&[&tasks[2]], &kept, 1).unwrap();
        assert_eq!(table(&tasks, &["job.0.scheme"], &kept).unwrap(), table_first, "the same again");
        std::fs::remove_dir_all(kept.folder()).unwrap();
    }
}
