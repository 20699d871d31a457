//! `fanin topology` and `fanin server`, as a user meets them.
#![allow(missing_docs)]

mod support;

use support::{fanin, text};

const RACKS: &str = "
[[switch]]
name = 'spine'
control = '10.0.0.1:50099'
data = '10.0.0.1:48864'
[[switch]]
name = 'rack0'
parent = 'spine'
control = '10.0.1.1:50099'
data = '10.0.1.1:48864'
workers = ['10.0.1.0/24']
";

fn file(name: &str, contents: &str) -> String {
    let file =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fanin-{name}-{}.toml", std::process::id()));
    std::fs::write(&file, contents).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn a_topology_is_explained_level_by_level() {
    let racks = file("racks", RACKS);
    let job = ["topology", "check", &racks, "--job", "rack0=2,10.0.1.9,spine"];
    let output = fanin(&[&job[..], &["--algorithm", "atp"]].concat());
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    for part in [
        "jobs are admitted at 10.0.0.1:50099",
        "rack0: below spine",
        "a job of 4 workers sums at 2 levels",
        "level 0: rack0 has fan-in 3 (0 switches, ranks 0, 1, 2); one packet of each chunk goes on to spine",
        "level 1: spine has fan-in 2 (1 switches, ranks 3); one packet of each chunk goes on to the parameter server",
    ] {
        assert!(shown.contains(part), "`{part}` in\n{shown}");
    }
    let output = fanin(&[&job[..], &["--lanes", "2", "--slots", "512"]].concat());
    let shown = text(&output.stdout);
    for part in [
        "level 0: rack0 has fan-in 3 (0 switches, ranks 0, 1, 2); one packet of each chunk goes on to spine",
        "goes on to all workers, as the whole sum",
        "each of these 2 switches reserves 2 × 512 slots of 2016 elements for it: 15.8 MiB of --slot-memory",
        "16- and 8-bit formats are refused",
    ] {
        assert!(shown.contains(part), "`{part}` in\n{shown}");
    }
}

#[test]
fn mistakes_are_named_with_what_to_do() {
    let (racks, no_root) = (file("good", RACKS), file("bad", "[[switch]]\nname = 'a'"));
    for (arguments, why) in [
        (&["topology", "check", "no-such-file.toml"][..], "cannot read the topology no-such-file.toml"),
        (&["topology", "check", &no_root], "missing field `control`"),
        (&["topology", "check", &racks, "--job", "rack7=2"], "neither an address nor a switch"),
        (&["topology", "check", &racks, "--job", "rack0=many"], "`many` is no number of workers"),
        (&["topology", "check", &racks, "--job", "rack0=33", "--algorithm", "atp"], "`rack0` would have 33 children"),
        (&["switch", "--topology", &racks, "--name", "rack7"], "no switch of the topology is named `rack7`"),
        (&["server", "--switch", "127.0.0.1:1", "--data-port", "0"], "127.0.0.1:1"),
    ] {
        let output = fanin(arguments);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {error}");
        assert!(error.contains(why), "`{why}` in `{error}`");
    }
}
