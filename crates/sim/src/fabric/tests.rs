use super::*;

fn links() -> Links {
    let link = LinkConfig {
        rate_bps: 10_000_000_000,
        delay_ps: 1_000_000,
        queue_bytes_max: 100_000,
        mark_bytes: 50_000,
        corruption: 0.0,
    };
    Links { host: link, access: link, core: link }
}

/// Hops from one host to another when every choice is made by `pick`.
fn walk(fabric: &Fabric, from: usize, to: usize, pick: impl Fn(u32) -> u32) -> usize {
    let (ports, routes) = (fabric.ports(), fabric.routes().unwrap());
    let mut node = ports[from][0].neighbour as usize;
    for hops in 1..20 {
        if node == to {
            return hops;
        }
        let switch = &routes.switches[node - fabric.host_count as usize];
        let route = switch.by_rack[usize::from(routes.rack_of[to])];
        let port = match route.count {
            0 => routes.port_of[to],
            count => switch.ports(&route)[pick(count.into()) as usize],
        };
        node = ports[node][usize::from(port)].neighbour as usize;
    }
    panic!("host {from} does not reach host {to}");
}

#[test]
fn a_fat_tree_has_the_numbers_of_the_paper() {
    let fabric = fat_tree(16, links()).unwrap();
    assert_eq!((fabric.host_count, fabric.switch_count), (1024, 320));
    assert!(fabric.ports()[1024..].iter().all(|ports| ports.len() == 16));
    let routes = fabric.routes().unwrap();
    let tiers = |tier| routes.switches.iter().filter(|switch| switch.tier == tier).count();
    assert_eq!((tiers(0), tiers(1), tiers(2)), (128, 128, 64));
}

#[test]
fn every_path_of_a_fat_tree_arrives_by_the_shortest_way() {
    let fabric = fat_tree(4, links()).unwrap();
    for from in 0..16 {
        for to in (0..16).filter(|&to| to != from) {
            let expected = if from / 2 == to / 2 {
                2
            } else if from / 4 == to / 4 {
                4
            } else {
                6
            };
            for choice in 0..4 {
                assert_eq!(walk(&fabric, from, to, |count| choice % count), expected, "{from} to {to}");
            }
        }
    }
}

#[test]
fn the_other_shapes_are_connected_as_well() {
    for fabric in [leaf_spine(4, 2, 3, links()).unwrap(), star(5, links()).unwrap(), dumbbell(2, 3, links()).unwrap()] {
        let hosts = fabric.host_count as usize;
        for (from, to) in (0..hosts).flat_map(|from| (0..hosts).map(move |to| (from, to))).filter(|(a, b)| a != b) {
            assert!((2..=4).contains(&walk(&fabric, from, to, |count| count - 1)));
        }
        assert_eq!(fabric.part_of.len(), fabric.node_count() as usize);
    }
}

#[test]
fn networks_that_cannot_work_are_refused() {
    assert!(fat_tree(5, links()).is_err() && fat_tree(66, links()).is_err());
    assert!(star(1, links()).is_err() && dumbbell(0, 1, links()).is_err() && leaf_spine(0, 1, 1, links()).is_err());
    let mut torn = dumbbell(1, 1, links()).unwrap();
    torn.cables.pop();
    assert!(torn.routes().unwrap_err().to_string().contains("cannot reach"));
    let mut twice = star(3, links()).unwrap();
    twice.cables.push(twice.cables[0]);
    assert!(twice.routes().unwrap_err().to_string().contains("exactly one"));
}
