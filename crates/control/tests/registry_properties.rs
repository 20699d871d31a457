//! Random histories of the registry against the promises that no history may break.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use fanin_control::Algorithm;
use fanin_control::proto::{Absences, LeaveRequest, Report};
use fanin_control::registry::{Assignment, Boundary, Effect, JoinAsk, Limits, Registry, Ticket};
use fanin_control::tenants::Tenant;
use fanin_protocol::atp::Tree;
use proptest::prelude::*;
use support::{WORKER, counting_entropy, leave, report, request};

const MEMORY_BYTES: u64 = 400 << 10;
const QUOTA_BYTES: [u64; 3] = [u64::MAX, 200 << 10, 100 << 10];
/// The job that goes on without lost ranks, and takes replacements.
const GOES_ON: u8 = 2;
/// Replacements admitted in all histories.
static REPLACED: AtomicU64 = AtomicU64::new(0);
const QUOTA_JOBS: [u32; 3] = [u32::MAX, 3, 2];

#[derive(Clone, Debug)]
enum Step {
    Join {
        tenant: usize,
        job: u8,
        run: u8,
        rank: u32,
        world_size: u32,
        slots: u32,
        elements: u32,
        replaces: bool,
    },
    Cancel {
        pick: usize,
    },
    Attach {
        pick: usize,
        rank: u32,
        stream: u64,
    },
    Report {
        pick: usize,
        rank: u32,
        stream: u64,
    },
    /// A rank waits for the others and for replacements.
    Boundary {
        pick: usize,
        rank: u32,
        stream: u64,
        sequence: u64,
    },
    CloseStream {
        pick: usize,
        rank: u16,
        stream: u64,
    },
    Leave {
        pick: usize,
        rank: u32,
    },
    Pass {
        ms: u64,
    },
    FailNextInstall,
    Drain,
}

fn step() -> impl Strategy<Value = Step> {
    let join = (0..3usize, 0..3u8, 0..3u8, 0..3u32, 1..4u32, 0..40u32, 1..600u32, 0..4u8).prop_map(
        |(tenant, job, run, rank, world_size, slots, elements, kind)| Step::Join {
            replaces: kind == 0,
            tenant,
            job,
            run,
            rank,
            world_size,
            slots,
            elements,
        },
    );
    let member = (0..8usize, 0..3u32, 0..4u64);
    prop_oneof![
        80 => join,
        4 => (0..8usize).prop_map(|pick| Step::Cancel { pick }),
        24 => member.clone().prop_map(|(pick, rank, stream)| Step::Attach { pick, rank, stream }),
        16 => member.clone().prop_map(|(pick, rank, stream)| Step::Report { pick, rank, stream }),
        24 => (member.clone(), 0..3u64).prop_map(|((pick, rank, stream), sequence)| {
            Step::Boundary { pick, rank, stream, sequence }
        }),
        8 => member.prop_map(|(pick, rank, stream)| Step::CloseStream { pick, rank: rank as u16, stream }),
        12 => (0..8usize, 0..3u32).prop_map(|(pick, rank)| Step::Leave { pick, rank }),
        16 => (1..800u64).prop_map(|ms| Step::Pass { ms }),
        4 => Just(Step::FailNextInstall),
        // Rare: nothing interesting follows it.
        1 => Just(Step::Drain),
    ]
}

const STREAM: u64 = 0;

fn join_going_on(rank: u32, replaces: bool) -> Step {
    Step::Join { tenant: 0, job: GOES_ON, run: 0, rank, world_size: 3, slots: 16, elements: 256, replaces }
}

/// In a job that goes on without lost ranks.
fn step_going_on() -> impl Strategy<Value = Vec<Step>> {
    let meet = |sequence: u64| {
        (0..3).map(|rank| Step::Boundary { pick: 0, rank, stream: STREAM, sequence }).collect::<Vec<_>>()
    };
    let one = |step: Step| vec![step];
    prop_oneof![
        8 => (0..3u32).prop_map(move |rank| one(join_going_on(rank, true))),
        4 => (0..3u16).prop_map(move |rank| one(Step::CloseStream { pick: 0, rank, stream: STREAM })),
        12 => (0..100u64).prop_map(meet),
        12 => Just((0..3).map(|rank| Step::Attach { pick: 0, rank, stream: STREAM }).collect()),
        4 => step().prop_map(one),
    ]
}

/// What a data plane and the waiting calls would hold: the other half of every promise.
struct World {
    registry: Registry,
    now_ms: u64,
    installed: BTreeMap<u32, Assignment>,
    job_ids_ever: BTreeSet<u32>,
    waiting: BTreeSet<Ticket>,
    rank_of: BTreeMap<Ticket, u32>,
    /// Of replacements, by job and rank.
    memberships: BTreeMap<(u32, u32), u64>,
    /// Of jobs that were set up again: what packets carry, and who is left.
    trees: BTreeMap<u32, (u32, Tree)>,
    fail_next_install: bool,
}

impl World {
    fn new() -> Self {
        let limits = Limits { slot_memory_bytes: MEMORY_BYTES, job_count_max: 5, ..support::limits() };
        let mut registry = Registry::new(limits, counting_entropy());
        registry.server_attached(1, vec!["127.0.0.1:4000".parse().expect("an address")]);
        Self {
            registry,
            now_ms: 0,
            installed: BTreeMap::new(),
            job_ids_ever: BTreeSet::new(),
            waiting: BTreeSet::new(),
            rank_of: BTreeMap::new(),
            memberships: BTreeMap::new(),
            trees: BTreeMap::new(),
            fail_next_install: false,
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Join { tenant, job, run, rank, world_size, slots, elements, replaces } => {
                let mut ask = request(&format!("job{job}"), rank, world_size);
                (ask.run_id, ask.slots_per_lane_wanted, ask.element_count_max) = (format!("run{run}"), slots, elements);
                if job == GOES_ON {
                    (ask.algorithm, ask.replace) = (Algorithm::Atp.into(), replaces);
                    ask.absences = Some(Absences { goes_on: true, stragglers: None });
                }
                self.join(tenant, ask);
            }
            Step::Cancel { pick } => self.cancel(pick),
            Step::Attach { pick, rank, stream } => {
                self.with_job(pick, |registry, now_ms, job, membership| {
                    let report = Report { membership: membership(rank), ..report(job, rank) };
                    drop(registry.attach(now_ms, &report, stream));
                });
            }
            Step::Report { pick, rank, stream } => {
                self.with_job(pick, |registry, now_ms, job, membership| {
                    let report = Report { membership: membership(rank), ..report(job, rank) };
                    drop(registry.report(now_ms, report, stream));
                });
            }
            Step::Boundary { pick, rank, stream, sequence } => {
                let boundary = Boundary { sequence, chunks: vec![7 * sequence; 2] }.to_proto(500);
                self.with_job(pick, |registry, now_ms, job, membership| {
                    let report = Report { boundary: Some(boundary), membership: membership(rank), ..report(job, rank) };
                    drop(registry.report(now_ms, report, stream));
                });
            }
            Step::CloseStream { pick, rank, stream } => {
                self.with_job(pick, |registry, now_ms, job, _| {
                    registry.stream_closed(now_ms, job.job_id, rank, stream);
                });
            }
            Step::Leave { pick, rank } => {
                self.with_job(pick, |registry, _, job, membership| {
                    drop(registry.leave(&LeaveRequest { membership: membership(rank), ..leave(job, rank) }));
                });
            }
            Step::Pass { ms } => {
                self.now_ms += ms;
                self.registry.expire(self.now_ms);
                let next_ms = self.registry.next_expiry_ms();
                assert!(next_ms.is_none_or(|at_ms| at_ms > self.now_ms), "the clock would not sleep: {next_ms:?}");
            }
            Step::FailNextInstall => self.fail_next_install = true,
            Step::Drain => self.registry.drain(0),
        }
        self.carry_out();
    }

    fn join(&mut self, tenant: usize, request: fanin_control::proto::JoinRequest) {
        let Ok(ask) = JoinAsk::check(request, self.registry.limits(), WORKER) else { return };
        let tenant = Tenant {
            name: format!("tenant{tenant}"),
            slot_memory_bytes_max: QUOTA_BYTES[tenant],
            job_count_max: QUOTA_JOBS[tenant],
            operator: false,
        };
        let rank = u32::from(ask.rank);
        if let Ok(ticket) = self.registry.join(self.now_ms, &tenant, ask) {
            assert!(self.waiting.insert(ticket), "a ticket was given twice");
            self.rank_of.insert(ticket, rank);
        }
    }

    fn cancel(&mut self, pick: usize) {
        let Some(ticket) = self.waiting.iter().nth(pick).copied() else { return };
        self.waiting.remove(&ticket);
        self.registry.cancel(self.now_ms, ticket);
    }

    fn with_job(&mut self, pick: usize, act: impl FnOnce(&mut Registry, u64, &Assignment, &dyn Fn(u32) -> u64)) {
        if let Some(job) = self.installed.values().nth(pick) {
            // Zero: the rank's first process.
            let membership = |rank| self.memberships.get(&(job.job_id, rank)).copied().unwrap_or(0);
            act(&mut self.registry, self.now_ms, job, &membership);
        }
    }

    fn carry_out(&mut self) {
        while let Some(effect) = self.registry.poll_effect() {
            match effect {
                Effect::Install(assignment) => self.install(assignment),
                Effect::SetUpAgain(assignment) => self.set_up_again(assignment),
                Effect::Remove { job_id } => assert!(self.installed.remove(&job_id).is_some(), "removed twice"),
                Effect::Admit { ticket, assignment } => {
                    assert!(self.waiting.remove(&ticket), "answered twice or after a cancel");
                    if let Some(resumed) = &assignment.resumed {
                        self.memberships.insert((assignment.job_id, self.rank_of[&ticket]), ticket.0);
                        REPLACED.fetch_add(1, Ordering::Relaxed);
                        let known = self.trees.get(&assignment.job_id).map(|(token, _)| *token);
                        assert_eq!(known, Some(resumed.packet_token), "packets that the data plane does not know");
                    }
                    assert!(self.installed.contains_key(&assignment.job_id), "admitted before the data plane is ready");
                }
                Effect::Refuse { ticket, .. } => assert!(self.waiting.remove(&ticket), "answered twice"),
                Effect::Notify { job_id, .. } | Effect::CloseStream { job_id, .. } => {
                    assert!(self.job_ids_ever.contains(&job_id));
                }
            }
        }
    }

    fn install(&mut self, assignment: Assignment) {
        let number = |job_id: u32| job_id as u8;
        assert!(self.job_ids_ever.insert(assignment.job_id), "a job id came back");
        for other in self.installed.values() {
            assert_ne!(number(other.job_id), number(assignment.job_id), "two live jobs share a number");
            assert_ne!(other.job_token, assignment.job_token, "two live jobs share a token");
        }
        if std::mem::take(&mut self.fail_next_install) {
            return self.registry.install_done(self.now_ms, assignment.job_id, Err("told to fail".into()));
        }
        self.registry.install_done(self.now_ms, assignment.job_id, Ok(()));
        self.installed.insert(assignment.job_id, assignment);
    }

    /// The tree of those who are in the job, under a token that no other job has.
    fn set_up_again(&mut self, assignment: Assignment) {
        let job = self.installed.get(&assignment.job_id).expect("an installed job");
        assert_ne!(job.job_token, assignment.job_token, "packets of the first tree would pass");
        let outcome = match std::mem::take(&mut self.fail_next_install) {
            true => Err("told to fail".into()),
            false => Ok(()),
        };
        let tree = assignment.atp.as_ref().expect("an ATP job").tree.clone();
        assert!(tree.left_count() > 0, "a job without workers");
        if outcome.is_ok() {
            let old = self.trees.insert(assignment.job_id, (assignment.job_token, tree));
            assert_ne!(old.map(|(token, _)| token), Some(assignment.job_token), "packets of the old tree would pass");
        }
        self.registry.set_up_again_done(self.now_ms, assignment.job_id, assignment.job_token, outcome);
    }

    fn check(&self) {
        let installed_bytes: u64 = self.installed.values().map(Assignment::slot_memory_bytes).sum();
        let capacity = self.registry.capacity();
        let reserved: u64 = capacity.users.iter().map(|user| user.slot_memory_bytes).sum();
        assert!(installed_bytes <= reserved && reserved <= MEMORY_BYTES, "{installed_bytes} {reserved}");
        assert_eq!(capacity.slot_memory_bytes_free, MEMORY_BYTES - reserved);
        assert!(capacity.job_count <= 5);
        for tenant in 0..3 {
            let users = capacity.users.iter().filter(|user| user.tenant == format!("tenant{tenant}"));
            let bytes: Vec<u64> = users.map(|user| user.slot_memory_bytes).collect();
            assert!(bytes.iter().sum::<u64>() <= QUOTA_BYTES[tenant], "quota of tenant{tenant}");
            assert!(bytes.len() <= QUOTA_JOBS[tenant] as usize, "job quota of tenant{tenant}");
        }
        let known: Vec<u32> = self.installed.keys().copied().collect();
        assert_eq!(self.registry.job_ids(), known, "registry and data plane know the same jobs");
        let powers = self.installed.values().all(|job| job.slots_per_lane.is_power_of_two());
        assert!(powers);
    }

    /// When everybody falls silent, every call is answered and everything is free within the longest bound.
    fn end(&mut self) {
        for _ in 0..4 {
            self.now_ms += 10_000;
            self.registry.expire(self.now_ms);
            self.carry_out();
        }
        assert!(self.registry.is_idle());
        assert!(self.waiting.is_empty(), "unanswered: {:?}", self.waiting);
        assert!(self.installed.is_empty());
        assert_eq!(self.registry.capacity().slot_memory_bytes_free, MEMORY_BYTES);
        assert_eq!(self.registry.next_expiry_ms(), None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn no_history_breaks_the_promises(steps in prop::collection::vec(step(), 1..120)) {
        let mut world = World::new();
        for step in steps {
            world.take(step);
            world.check();
        }
        world.end();
    }

    /// The same with a running job at the start that goes on without lost ranks.
    fn no_history_with_replacements_breaks_them(steps in prop::collection::vec(step_going_on(), 1..60)) {
        let mut world = World::new();
        (0..3).for_each(|rank| world.take(join_going_on(rank, false)));
        (0..3).for_each(|rank| world.take(Step::Attach { pick: 0, rank, stream: STREAM }));
        for step in steps.into_iter().flatten() {
            world.take(step);
            world.check();
        }
        world.end();
    }
}

#[test]
fn histories_have_replacements() {
    let before = REPLACED.load(Ordering::Relaxed);
    no_history_with_replacements_breaks_them();
    let replaced = REPLACED.load(Ordering::Relaxed) - before;
    assert!(replaced > 100, "only {replaced} ranks were replaced in 1,000 histories");
}
