//! The controller over real gRPC on loopback, one story per test.

mod support;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use fanin_control::ErrorCode;
use fanin_control::client::{ClientConfig, ControlClient, HostReport, Notice};
use fanin_control::proto::{Collective, JobState, LossReason, WorkerState};
use fanin_switch::dataplane_api::{IncompleteSlot, InstallError, JobInspection, LaneInspection, WorkerSeen};
use fanin_switch::{Config, DrainOutcome};
use support::{LOOPBACK, Switch, join_all, join_each, no_report, parameters, within};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn four_ranks_join_get_the_same_job_and_leave_nothing_behind() {
    let switch = Switch::start(|_| {});
    let members = join_all(&switch, "train", 4);
    let (_, first) = &members[0];
    for (rank, (_, admission)) in members.iter().enumerate() {
        assert_eq!(admission.assignment, first.assignment);
        assert_eq!(usize::from(admission.rank), rank);
        assert_eq!(admission.data_addresses, switch.handle.data_ports());
    }
    let installed = switch.dataplane.jobs.lock().unwrap()[&first.assignment.job_id].clone();
    assert_eq!((installed.job_token, installed.world_size), (first.assignment.job_token, 4));
    assert_ne!(installed.job_token, 0);
    for (client, admission) in &members {
        client.leave(admission).unwrap();
    }
    within(SECOND, "the data plane gives the slots back", || switch.installed().is_empty());
}

#[test]
fn a_missing_rank_is_named_within_the_deadline() {
    let switch = Switch::start(|_| {});
    let start = Instant::now();
    let short = |rank| fanin_control::client::JoinParameters {
        wait: Duration::from_millis(400),
        ..parameters("train", rank, 4)
    };
    let answers = join_each(&switch, [0, 1, 3].into_iter().map(short));
    assert!(start.elapsed() < 2 * SECOND, "{:?}", start.elapsed());
    for (_, answer) in answers {
        let error = answer.unwrap_err();
        assert_eq!((error.code, error.missing_ranks.as_slice()), (ErrorCode::MissingRanks, &[2][..]), "{error}");
        assert!(error.to_string().contains("rank 2 did not join"), "{error}");
    }
}

#[test]
fn disagreement_reaches_both_sides_long_before_the_deadline() {
    let switch = Switch::start(|_| {});
    let start = Instant::now();
    let answers = join_each(&switch, [parameters("train", 0, 2), parameters("train", 1, 3)].into_iter());
    assert!(start.elapsed() < 3 * SECOND);
    for (_, answer) in answers {
        let error = answer.unwrap_err();
        assert_eq!(error.code, ErrorCode::RanksDisagree, "{error}");
        assert!(error.message.contains("says 2") && error.message.contains("says 3"), "{error}");
    }
}

#[test]
fn a_client_that_dies_while_waiting_frees_its_rank() {
    let switch = Switch::start(|_| {});
    let config = switch.client_config();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = runtime.block_on(fanin_control::client::Client::connect(&config)).unwrap();
    let waiting = runtime.spawn(async move { client.join(&parameters("train", 0, 2)).await });
    let observer = switch.client();
    within(SECOND, "the rank waits", || observer.status().unwrap().jobs.len() == 1);
    waiting.abort();
    within(SECOND, "the rank is free", || observer.status().unwrap().jobs.is_empty());
}

const TENANTS: &str = r#"
    [[tenant]]
    name = "vision"
    token = "vision-0123456789"
    slot_memory_bytes_max = 600000
    [[tenant]]
    name = "ops"
    token = "ops-0123456789abc"
    operator = true
"#;

/// Files of one test, removed with it.
struct Files(std::path::PathBuf);

impl Files {
    fn new(name: &str) -> Self {
        let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("fanin-controller-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, text: &str) -> std::path::PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn with_token(switch: &Switch, token: Option<&str>) -> ClientConfig {
    ClientConfig { token: token.map(str::to_string), ..switch.client_config() }
}

#[test]
fn tokens_open_the_switch_and_quotas_bind_their_tenant() {
    let files = Files::new("tokens");
    let switch = Switch::start(|config| config.tenants_file = Some(files.write("tenants.toml", TENANTS)));
    for token in [None, Some("vision-012345678X"), Some("bad\ntoken")] {
        let error = ControlClient::connect(&with_token(&switch, token)).err().unwrap();
        assert_eq!(error.code, ErrorCode::Unauthenticated, "{token:?}: {error}");
    }
    let vision = ControlClient::connect(&with_token(&switch, Some("vision-0123456789"))).unwrap();
    let admission = vision.join(&parameters("a", 0, 1)).unwrap(); // 256 KiB
    vision.join(&parameters("b", 0, 1)).unwrap();
    let error = vision.join(&parameters("c", 0, 1)).unwrap_err();
    assert_eq!(error.code, ErrorCode::QuotaExceeded, "{error}");
    assert_eq!(error.capacity.unwrap().users.len(), 2);
    assert_eq!(vision.drain(Duration::ZERO).unwrap_err().code, ErrorCode::Forbidden);
    let ops = ControlClient::connect(&with_token(&switch, Some("ops-0123456789abc"))).unwrap();
    ops.join(&parameters("c", 0, 1)).expect("the quota is another tenant's");
    let job_id = admission.assignment.job_id;
    assert_eq!(ops.inspect(job_id).unwrap().job.unwrap().tenant, "vision", "an operator may look");
    let own = ops.status().unwrap().jobs.into_iter().find(|job| job.tenant == "ops").unwrap();
    assert_eq!(vision.inspect(own.job_id).unwrap_err().code, ErrorCode::Forbidden);
}

struct Authority {
    ca_pem: String,
    certificate_pem: String,
    key_pem: String,
}

fn authority() -> Authority {
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let mut ca = rcgen::CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca_pem = ca.self_signed(&ca_key).unwrap().pem();
    let issuer = rcgen::Issuer::new(ca, ca_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let names = vec!["127.0.0.1".to_string(), "switch.test".to_string()];
    let certificate = rcgen::CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
    Authority { ca_pem, certificate_pem: certificate.pem(), key_pem: key.serialize_pem() }
}

fn trusting(switch: &Switch, ca_pem: &str, server_name: Option<&str>) -> ClientConfig {
    let trust = fanin_control::client::TlsTrust { ca_pem: ca_pem.into(), server_name: server_name.map(str::to_string) };
    ClientConfig { tls: Some(trust), ..switch.client_config() }
}

#[test]
fn tls_takes_the_right_authority_and_explains_the_wrong_one() {
    let files = Files::new("tls");
    let (ours, theirs) = (authority(), authority());
    let switch = Switch::start(|config| {
        config.tls_certificate_file = Some(files.write("certificate.pem", &ours.certificate_pem));
        config.tls_key_file = Some(files.write("key.pem", &ours.key_pem));
    });
    for name in [None, Some("switch.test")] {
        let client = ControlClient::connect(&trusting(&switch, &ours.ca_pem, name)).unwrap();
        assert!(client.status().unwrap().jobs.is_empty());
    }
    let connect = |ca_pem, name| ControlClient::connect(&trusting(&switch, ca_pem, name)).err().unwrap();
    let wrong_authority = connect(&theirs.ca_pem, None);
    let wrong_name = connect(&ours.ca_pem, Some("elsewhere.test"));
    for error in [wrong_authority, wrong_name, connect("no pem at all", None)] {
        assert_eq!(error.code, ErrorCode::Tls, "{error}");
        assert!(error.hint.contains("CA certificate"), "{error}");
    }
    let without_tls = ControlClient::connect(&switch.client_config()).err().unwrap();
    assert!(without_tls.to_string().contains("if the switch uses TLS"), "{without_tls}");
    let plain = Switch::start(|_| {});
    let error = ControlClient::connect(&trusting(&plain, &ours.ca_pem, None)).err().unwrap();
    assert_eq!(error.code, ErrorCode::Tls, "{error}");
}

#[test]
fn a_full_switch_says_what_is_free_and_who_uses_it() {
    let switch = Switch::start(|config| config.limits.slot_memory_bytes = 300_000);
    let client = switch.client();
    client.join(&parameters("big", 0, 1)).unwrap();
    let error = client.join(&parameters("late", 0, 1)).unwrap_err();
    assert_eq!(error.code, ErrorCode::SwitchFull);
    let capacity = error.capacity.unwrap();
    assert_eq!(capacity.slot_memory_bytes_free, 300_000 - 262_144);
    assert_eq!(capacity.users[0].job_name, "big");
}

#[test]
fn a_closed_stream_reaches_the_peers_within_a_second() {
    let switch = Switch::start(|_| {});
    let mut members = join_all(&switch, "train", 3);
    let (doomed, admission) = members.remove(1);
    let attachment = doomed.attach(&admission, no_report).unwrap();
    let peers: Vec<_> =
        members.iter().map(|(client, admission)| client.attach(admission, no_report).unwrap()).collect();
    let start = Instant::now();
    drop((attachment, doomed)); // what the system does to the sockets of a killed process
    for (_, notices) in &peers {
        let notice = notices.recv_timeout(SECOND).expect("within a second");
        let Notice::PeerLost { rank, reason, .. } = notice else { panic!("{notice:?}") };
        assert_eq!((rank, reason), (1, LossReason::StreamClosed));
    }
    assert!(start.elapsed() < SECOND);
    let inspected = members[0].0.inspect(admission.assignment.job_id).unwrap().job.unwrap();
    assert_eq!(inspected.state(), JobState::Broken);
    assert!(inspected.broken_reason.contains("rank 1 (host1/1001)"), "{}", inspected.broken_reason);
}

#[test]
fn a_silent_client_loses_its_lease_and_its_slots() {
    let switch = Switch::start(|config| config.limits.lease_ms = 800);
    let members = join_all(&switch, "train", 2);
    let (client, admission) = &members[0];
    let (_attachment, notices) = client.attach(admission, no_report).unwrap();
    // Rank 1 has joined but never attaches: a stopped process looks the same to the switch.
    let notice = notices.recv_timeout(3 * SECOND).unwrap();
    assert!(matches!(notice, Notice::PeerLost { rank: 1, reason: LossReason::NeverAttached, .. }), "{notice:?}");
    std::thread::sleep(Duration::from_millis(1200));
    let worker = client.status().unwrap().jobs[0].workers[0].clone();
    assert_eq!(worker.state(), WorkerState::Attached, "reports renew the lease");
    client.leave(admission).unwrap();
    within(SECOND, "the slots are free", || switch.installed().is_empty());
}

/// The reader of the report blocks, as in a process that is stopped while its connection stands.
#[test]
fn a_stuck_client_with_an_open_connection_loses_its_lease() {
    let switch = Switch::start(|config| config.limits.lease_ms = 800);
    let members = join_all(&switch, "train", 2);
    let mut calls = 0;
    let stuck = move || {
        calls += 1;
        if calls > 1 {
            std::thread::sleep(Duration::from_secs(3));
        }
        HostReport::default()
    };
    let _held = members[1].0.attach(&members[1].1, stuck).unwrap();
    let (_attachment, notices) = members[0].0.attach(&members[0].1, no_report).unwrap();
    let notice = notices.recv_timeout(2 * SECOND).unwrap();
    assert!(matches!(notice, Notice::PeerLost { rank: 1, reason: LossReason::LeaseExpired, .. }), "{notice:?}");
}

#[test]
fn leaving_in_order_is_no_loss() {
    let switch = Switch::start(|_| {});
    let members = join_all(&switch, "train", 2);
    let (_kept, notices) = members[0].0.attach(&members[0].1, no_report).unwrap();
    let leaver = members[1].0.attach(&members[1].1, no_report).unwrap();
    members[1].0.leave(&members[1].1).unwrap();
    drop(leaver);
    assert_eq!(notices.recv_timeout(SECOND).unwrap(), Notice::PeerLeft { rank: 1 });
    assert!(notices.recv_timeout(SECOND / 4).is_err(), "no further news");
}

#[test]
fn inspect_tells_what_is_waited_for_and_what_each_rank_does() {
    let switch = Switch::start(|_| {});
    let members = join_all(&switch, "train", 2);
    let oldest =
        IncompleteSlot { slot_index: 70, slot_parity: 1, chunk_index: 134, collective_tag: 9, missing_ranks: vec![1] };
    *switch.dataplane.inspection.lock().unwrap() = JobInspection {
        slots_in_use: 3,
        lanes: vec![LaneInspection {
            lane: 1,
            slots_in_use: 3,
            oldest_incomplete: Some(oldest),
            ..LaneInspection::default()
        }],
        workers: vec![WorkerSeen { rank: 0, address: Some((LOOPBACK, 4000).into()), last_seen_ms: Some(12) }],
    };
    let report = || HostReport {
        collective: Some(Collective {
            sequence: 41,
            description: "allreduce float32 x 8".into(),
            ..Collective::default()
        }),
        ..HostReport::default()
    };
    let (client, admission) = &members[0];
    let (attachment, _notices) = client.attach(admission, report).unwrap();
    attachment.report_now();
    let inspection = client.inspect(admission.assignment.job_id).unwrap();
    let slot = inspection.lanes[0].oldest_incomplete.as_ref().unwrap();
    assert_eq!((slot.chunk_index, slot.slot_parity, slot.missing_ranks.as_slice()), (134, 1, &[1][..]));
    let worker = &inspection.job.unwrap().workers[0];
    assert_eq!((worker.data_address.as_str(), worker.packet_age_ms), ("127.0.0.1:4000", Some(12)));
    let report = worker.last_report.as_ref().unwrap();
    assert_eq!(report.collective.as_ref().unwrap().sequence, 41);
    assert_eq!(report.job_token, 0, "the token is not shown to others");
}

#[test]
fn a_data_plane_that_refuses_is_explained() {
    let switch = Switch::start(|_| {});
    *switch.dataplane.refuse.lock().unwrap() = Some(InstallError::Unsupported { what: "9 lanes".into() });
    let error = switch.client().join(&parameters("train", 0, 1)).unwrap_err();
    assert_eq!(error.code, ErrorCode::InstallFailed);
    assert!(error.message.contains("does not support 9 lanes"), "{error}");
}

#[test]
fn draining_refuses_new_jobs_and_waits_for_running_ones() {
    let switch = Switch::start(|_| {});
    let members = join_all(&switch, "train", 1);
    let (client, admission) = &members[0];
    let (_attachment, notices) = client.attach(admission, no_report).unwrap();
    std::thread::scope(|scope| {
        let drained = scope.spawn(|| switch.handle.drain(5 * SECOND));
        assert!(matches!(notices.recv_timeout(SECOND).unwrap(), Notice::Draining { .. }));
        let error = client.join(&parameters("new", 0, 1)).unwrap_err();
        assert_eq!(error.code, ErrorCode::Draining);
        assert!(!drained.is_finished(), "the job still runs");
        client.leave(admission).unwrap();
        assert_eq!(drained.join().unwrap(), DrainOutcome::Idle);
    });
}

#[test]
fn a_drain_ends_at_its_limit_and_stop_tells_the_workers() {
    let switch = Switch::start(|_| {});
    let members = join_all(&switch, "train", 1);
    let (_attachment, notices) = members[0].0.attach(&members[0].1, no_report).unwrap();
    let start = Instant::now();
    assert_eq!(switch.handle.drain(Duration::from_millis(200)), DrainOutcome::CutShort);
    let dataplane = switch.dataplane.clone();
    switch.handle.stop();
    assert!(start.elapsed() < 3 * SECOND, "{:?}", start.elapsed());
    let news: Vec<Notice> = std::iter::from_fn(|| notices.recv_timeout(SECOND).ok()).collect();
    assert!(news.iter().any(|notice| matches!(notice, Notice::JobRemoved { .. })), "{news:?}");
    assert!(dataplane.jobs.lock().unwrap().is_empty());
    assert!(*dataplane.stopped.lock().unwrap());
}

#[test]
fn an_operator_drains_over_grpc_and_the_daemon_ends() {
    let switch = Switch::start(|_| {});
    let client = switch.client();
    let daemon = std::thread::spawn(move || switch.handle.run_until_stopped().unwrap());
    assert_eq!(client.drain(Duration::ZERO).unwrap(), 0);
    within(5 * SECOND, "the daemon ends", || daemon.is_finished());
    assert_eq!(daemon.join().unwrap(), DrainOutcome::Idle);
}

#[test]
fn a_switch_that_dies_is_noticed_by_waiting_and_attached_workers() {
    let switch = Switch::start(|_| {});
    let members = join_all(&switch, "train", 1);
    let (_attachment, notices) = members[0].0.attach(&members[0].1, no_report).unwrap();
    let waiting = switch.client();
    let waiter = std::thread::spawn(move || waiting.join(&parameters("other", 0, 2)));
    within(SECOND, "it waits", || members[0].0.status().unwrap().jobs.len() == 2);
    drop(switch);
    let error = waiter.join().unwrap().unwrap_err();
    assert!(matches!(error.code, ErrorCode::Draining | ErrorCode::Unreachable), "{error}");
    assert!(notices.recv_timeout(3 * SECOND).is_ok());
    let start = Instant::now();
    assert_eq!(members[0].0.status().unwrap_err().code, ErrorCode::Unreachable);
    assert!(start.elapsed() < 11 * SECOND);
}

#[test]
fn wrong_addresses_are_told_apart() {
    let connect = |address: String| {
        let config = ClientConfig { connect_timeout: SECOND, ..ClientConfig::new(address) };
        let start = Instant::now();
        let error = ControlClient::connect(&config).err().expect("nobody is there");
        assert!(start.elapsed() < 3 * SECOND);
        error
    };
    let closed = TcpListener::bind((LOOPBACK, 0)).unwrap().local_addr().unwrap();
    let error = connect(closed.to_string());
    assert_eq!(error.code, ErrorCode::Unreachable);
    assert!(error.message.contains("nobody listens"), "{error}");
    let error = connect("no port".into());
    assert!(error.hint.contains("host:port"), "{error}");
    let switch = Switch::start(|_| {});
    let error = connect(switch.handle.http_address().unwrap().to_string());
    assert_eq!(error.code, ErrorCode::NotAController, "{error}");
    let mute = TcpListener::bind((LOOPBACK, 0)).unwrap();
    let error = connect(mute.local_addr().unwrap().to_string());
    assert!(error.message.contains("no answer"), "{error}");
}

#[test]
fn a_taken_port_is_named() {
    let taken = TcpListener::bind((LOOPBACK, 0)).unwrap();
    let mut config = Config::local(LOOPBACK);
    config.control_address = taken.local_addr().unwrap();
    let dataplane = std::sync::Arc::new(support::FakeDataplane::default());
    let error = fanin_switch::Daemon::start(&config, dataplane).err().unwrap().to_string();
    assert!(error.contains(&config.control_address.to_string()) && error.contains("control"), "{error}");
}

/// A client without HTTP library: what a shell script would do.
fn get(switch: &Switch, path: &str) -> String {
    let mut stream = std::net::TcpStream::connect(switch.handle.http_address().unwrap()).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: switch\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn metrics_have_names_units_and_labels() {
    let switch = Switch::start(|_| {});
    let members = join_all(&switch, "train \"quoted\"\\", 2);
    {
        let mut counters = switch.dataplane.counters.lock().unwrap();
        (counters.received_bytes, counters.contributions) = (12345, 7);
        counters.drops = vec![("wrong_token", 3)];
    }
    let text = get(&switch, "/metrics");
    let job = format!(r#"job="train \"quoted\"\\",tenant="default",job_id="{:#010x}""#, members[0].1.assignment.job_id);
    for line in [
        "fanin_switch_received_bytes_total 12345".to_string(),
        r#"fanin_switch_drops_total{reason="wrong_token"} 3"#.into(),
        r#"fanin_switch_jobs{state="running"} 1"#.into(),
        format!("fanin_job_contributions_total{{{job}}} 7"),
        format!("fanin_job_slots{{{job}}} 128"),
        format!(r#"fanin_job_workers{{{job},state="joined"}} 2"#),
        "# EOF".into(),
    ] {
        assert!(text.lines().any(|found| found.starts_with(&line)), "`{line}` in\n{text}");
    }
    assert!(text.contains("content-type: application/openmetrics-text"), "{text}");
}

#[test]
fn status_and_health_answer_scripts() {
    let switch = Switch::start(|_| {});
    let _members = join_all(&switch, "train", 2);
    let answer = get(&switch, "/api/status");
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let status: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(status["jobs"][0]["job_name"], "train");
    assert_eq!(status["jobs"][0]["state"], "running");
    assert_eq!(status["jobs"][0]["workers"][1]["label"], "host1/1001");
    assert!(get(&switch, "/healthz").starts_with("HTTP/1.1 200"));
    switch.handle.drain(Duration::ZERO);
    assert!(get(&switch, "/healthz").starts_with("HTTP/1.1 503"));
    assert!(get(&switch, "/nothing").starts_with("HTTP/1.1 404"));
}
