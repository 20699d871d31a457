//! Waits end for the stated reasons and within bounds.

mod common;

use std::thread;
use std::time::{Duration, Instant};

use common::{PATIENCE, datagrams, port, send_all};
use fanin_net::{Ready, Waker, wait_any};

/// Scheduling delay allowed on a busy test machine.
const SLACK: Duration = Duration::from_millis(500);

fn timed(wait: impl FnOnce() -> Ready) -> (Ready, Duration) {
    let begin = Instant::now();
    (wait(), begin.elapsed())
}

#[test]
fn a_timeout_is_honoured_with_and_without_spinning() {
    let (port, waker) = (port(), Waker::new().unwrap());
    for timeout in [Duration::ZERO, Duration::from_micros(300), Duration::from_millis(20)] {
        for spin in [Duration::ZERO, Duration::from_millis(2), Duration::from_secs(60)] {
            let (ready, took) = timed(|| port.wait(&waker, Some(timeout), spin).unwrap());
            assert!(!ready.readable && !ready.woken);
            assert!(took >= timeout && took < timeout + SLACK, "asked {timeout:?}, spin {spin:?}, took {took:?}");
        }
    }
}

#[test]
fn a_call_from_another_thread_ends_a_sleep_without_limit() {
    let (port, waker) = (port(), Waker::new().unwrap());
    for spin in [Duration::ZERO, Duration::from_secs(5)] {
        let caller = waker.clone();
        let called = thread::spawn(move || {
            thread::sleep(Duration::from_millis(30));
            caller.wake();
            Instant::now()
        });
        let ready = port.wait(&waker, None, spin).unwrap();
        let returned = Instant::now();
        assert!(ready.woken && !ready.readable);
        assert_eq!(ready.slept, spin.is_zero());
        assert!(returned.saturating_duration_since(called.join().unwrap()) < SLACK);
    }
}

#[test]
fn calls_before_the_wait_are_kept_and_merged() {
    let (port, waker) = (port(), Waker::new().unwrap());
    waker.wake();
    waker.wake();
    let (ready, took) = timed(|| port.wait(&waker, Some(PATIENCE), Duration::ZERO).unwrap());
    assert!(ready.woken && !ready.slept && took < SLACK);
    assert!(!port.wait(&waker, Some(Duration::from_millis(5)), Duration::ZERO).unwrap().woken);
}

#[test]
fn no_call_is_ever_missed() {
    let (port, waker) = (port(), Waker::new().unwrap());
    let (round, seen) = (std::sync::atomic::AtomicU32::new(0), std::sync::atomic::AtomicU32::new(0));
    const ROUNDS: u32 = 3000;
    use std::sync::atomic::Ordering::SeqCst;
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1..=ROUNDS {
                round.store(number, SeqCst);
                waker.wake();
                let begin = Instant::now();
                while seen.load(SeqCst) < number && begin.elapsed() < PATIENCE {
                    thread::yield_now();
                }
            }
        });
        while seen.load(SeqCst) < ROUNDS {
            let ready = port.wait(&waker, Some(PATIENCE), Duration::from_micros(1)).unwrap();
            assert!(ready.woken, "call {} was missed", seen.load(SeqCst) + 1);
            seen.store(round.load(SeqCst), SeqCst);
        }
    });
}

#[test]
fn a_datagram_ends_the_wait_on_whichever_port_it_arrives() {
    let (ports, waker, mut sender) = ([port(), port(), port()], Waker::new().unwrap(), port());
    let all: Vec<_> = ports.iter().collect();
    assert!(!wait_any(&all, &waker, Some(Duration::from_millis(1)), Duration::ZERO).unwrap().readable);
    send_all(&mut sender, &datagrams(&[10]), ports[2].local_addr());
    for spin in [Duration::ZERO, Duration::from_secs(1)] {
        let (ready, took) = timed(|| wait_any(&all, &waker, Some(PATIENCE), spin).unwrap());
        assert!(ready.readable && !ready.woken && took < SLACK);
    }
    assert!(wait_any(&[&ports[0]; 17], &waker, Some(Duration::ZERO), Duration::ZERO).is_err());
}
