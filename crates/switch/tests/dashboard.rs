//! The dashboard in a real browser: what a person sees when jobs come, change, break, and when the switch stops.
//!
//! Needs `chromium` and `chromedriver`; without them the test says so and passes, or fails where
//! `FANIN_REQUIRE_BROWSER` is set. `FANIN_SCREENSHOTS` names a folder for pictures.

mod support;

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fanin_control::client::HostReport;
use fanin_control::proto::{Collective, WorkerCounters};
use fanin_switch::dataplane_api::{JobInspection, WorkerSeen};
use fantoccini::{Client, ClientBuilder};
use serde_json::json;
use support::{LOOPBACK, Switch, join_all, parameters};

const PATIENCE: Duration = Duration::from_secs(10);

/// A driver with its browser and profile; all are gone when this is.
struct Driver {
    process: Child,
    port: u16,
    profile: PathBuf,
}

impl Drop for Driver {
    fn drop(&mut self) {
        // The browser is in the driver's process group and outlives the driver after a failed test otherwise.
        let group = format!("-{}", self.process.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.profile);
    }
}

fn driver() -> Option<Driver> {
    let browser = Command::new("chromium").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let mut command = Command::new("chromedriver");
    let spawned = command.arg("--port=0").process_group(0).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let (Ok(_), Ok(mut process)) = (browser, spawned) else {
        assert!(std::env::var_os("FANIN_REQUIRE_BROWSER").is_none(), "chromium or chromedriver is missing");
        eprintln!(
            "SKIPPED: the dashboard was NOT tested: chromium or chromedriver is missing (apt install chromium-driver)"
        );
        return None;
    };
    let output = BufReader::new(process.stdout.take().unwrap());
    let port = output.lines().map_while(Result::ok).find_map(|line| {
        let (_, port) = line.split_once("started successfully on port ")?;
        port.trim_end_matches('.').parse().ok()
    });
    let profile =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fanin-dashboard-{}", std::process::id()));
    Some(Driver { process, port: port.expect("chromedriver names its port"), profile })
}

async fn browse(driver: &Driver) -> Client {
    let profile = format!("--user-data-dir={}", driver.profile.display());
    let arguments = json!([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
        profile,
    ]);
    let mut capabilities = serde_json::map::Map::new();
    capabilities.insert("goog:chromeOptions".into(), json!({ "args": arguments }));
    capabilities.insert("goog:loggingPrefs".into(), json!({ "browser": "ALL" }));
    let address = format!("http://127.0.0.1:{}", driver.port);
    ClientBuilder::new(hyper_util::client::legacy::connect::HttpConnector::new())
        .capabilities(capabilities)
        .connect(&address)
        .await
        .expect("a browser session")
}

struct Page(Client);

impl Page {
    async fn read(&self, script: &str) -> String {
        let value = self.0.execute(&format!("return String({script})"), Vec::new()).await.expect(script);
        value.as_str().unwrap_or_default().to_string()
    }

    /// Waits until `script` gives something that `holds`, and returns it.
    async fn wait(&self, script: &str, holds: impl Fn(&str) -> bool) -> String {
        let start = Instant::now();
        loop {
            let text = self.read(script).await;
            if holds(&text) {
                return text;
            }
            assert!(start.elapsed() < PATIENCE, "`{script}` stays `{text}`");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn picture(&self, name: &str, width: u32, height: u32) {
        let Some(folder) = std::env::var_os("FANIN_SCREENSHOTS") else { return };
        self.0.set_window_size(width, height).await.unwrap();
        let png = self.0.screenshot().await.unwrap();
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(PathBuf::from(folder).join(format!("{name}.png")), png).unwrap();
    }

    async fn dark(&self, dark: bool) {
        let scheme = if dark { "dark" } else { "light" };
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        let command = Devtools(json!({ "cmd": "Emulation.setEmulatedMedia", "params": { "features": features } }));
        self.0.issue_cmd(command).await.unwrap();
    }
}

#[derive(Debug)]
struct Devtools(serde_json::Value);

impl fantoccini::wd::WebDriverCompatibleCommand for Devtools {
    fn endpoint(&self, base: &url::Url, session: Option<&str>) -> Result<url::Url, url::ParseError> {
        base.join(&format!("session/{}/goog/cdp/execute", session.unwrap_or_default()))
    }

    fn method_and_body(&self, _: &url::Url) -> (http::Method, Option<String>) {
        (http::Method::POST, Some(self.0.to_string()))
    }
}

fn traffic(switch: &Switch, bytes: u64) {
    let mut counters = switch.dataplane.counters.lock().unwrap();
    counters.received_bytes += bytes;
    counters.sent_bytes += bytes * 9 / 10;
    counters.aggregates += bytes / 4096;
    counters.resends_answered += bytes >> 24;
    counters.drops = vec![("wrong_token", 3), ("checksum", counters.received_bytes >> 26)];
}

fn seen(rank: u16) -> WorkerSeen {
    WorkerSeen { rank, address: Some((LOOPBACK, 41000 + rank).into()), last_seen_ms: Some(u64::from(rank) * 700) }
}

fn working_report(done: u64) -> HostReport {
    let collective = Collective {
        sequence: 1840 + done,
        description: "allreduce float32 × 6553600 sum".into(),
        elapsed_ms: 240,
        chunk_count_done: 37,
        chunk_count: 100,
        ..Collective::default()
    };
    HostReport {
        collective: Some(collective),
        counters: WorkerCounters { resends: 12, ..WorkerCounters::default() },
        ..HostReport::default()
    }
}

const JOB: &str = "document.querySelector('[data-job=train]')";

#[test]
fn the_page_shows_life_change_loss_and_silence() {
    let Some(driver) = driver() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let switch = Switch::start(|config| config.limits.lease_ms = 2000);
    let page = Page(runtime.block_on(browse(&driver)));
    let address = format!("http://{}/", switch.handle.http_address().unwrap());
    runtime.block_on(page.0.goto(&address)).unwrap();

    runtime.block_on(async {
        page.wait("live.textContent", |text| text == "live").await;
        assert_eq!(page.read("empty.hidden").await, "false");
        page.picture("empty", 1200, 700).await;
    });
    shows_a_job_that_changes(&switch, &page, &runtime);
    runtime.block_on(async {
        page.wait(&format!("{JOB} === null"), |text| text == "true").await;
        page.wait("empty.hidden", |text| text == "false").await;
    });
    switch.handle.stop();
    runtime.block_on(async {
        page.wait("banner.hidden ? '' : banner.textContent", |text| text.contains("has not answered for")).await;
        assert_eq!(page.read("live.textContent").await, "no answer");
        page.picture("silent", 1200, 700).await;
        page.0.close().await.unwrap();
    });
}

fn shows_a_job_that_changes(switch: &Switch, page: &Page, runtime: &tokio::runtime::Runtime) {
    let waiting = switch.client();
    let hostile = "<img src=x onerror=document.title='broken-into'>";
    let waiter = std::thread::spawn(move || {
        let ask = parameters(hostile, 1, 3);
        drop(waiting.join(&fanin_control::client::JoinParameters { wait: Duration::from_secs(7), ..ask }));
    });
    let mut members = join_all(switch, "train", 4);
    let mut attachments: Vec<_> = members
        .iter()
        .map(|(client, admission)| Some(client.attach(admission, || working_report(2)).unwrap()))
        .collect();
    let workers = (0..4).map(seen).collect();
    *switch.dataplane.inspection.lock().unwrap() = JobInspection { slots_in_use: 17, lanes: Vec::new(), workers };
    runtime.block_on(async {
        page.wait(&format!("{JOB} ? {JOB}.innerText : ''"), |text| text.contains("17 of 128")).await;
        let text = page.read(&format!("{JOB}.innerText")).await;
        for part in ["running", "host3/1003", "127.0.0.1:41002", "#1842 allreduce float32 × 6553600 sum · 37 %"] {
            assert!(text.contains(part), "`{part}` in\n{text}");
        }
        for step in 0..12 {
            traffic(switch, 60_000_000 + 20_000_000 * (step % 4));
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        page.wait("document.getElementById('rate-in').textContent", |text| text.ends_with("Gbit/s")).await;
        assert!(page.read("drops.innerText").await.contains("wrong token"));
        switch.dataplane.inspection.lock().unwrap().slots_in_use = 90;
        page.wait(&format!("{JOB}.innerText"), |text| text.contains("90 of 128")).await;
        page.picture("running", 1200, 900).await;
        page.dark(true).await;
        page.picture("running-dark", 1200, 900).await;
        page.picture("phone-dark", 500, 1500).await;
        page.dark(false).await;
        page.picture("phone", 500, 1500).await;
        let overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth";
        assert_eq!(page.read(overflow).await, "0", "no sideways scrolling on a phone");
        assert_eq!(page.read("document.title").await, "fanin switch", "names are text, not markup");
    });
    drop((attachments[2].take(), members.remove(2)));
    runtime.block_on(async {
        page.wait(&format!("{JOB}.innerText"), |text| text.contains("Broken: rank 2 (host2/1002) was lost")).await;
        page.picture("broken", 1200, 900).await;
    });
    for (client, admission) in &members {
        client.leave(admission).unwrap();
    }
    waiter.join().unwrap();
}
