use alloc::collections::BTreeSet;

use super::*;

/// The folded Clos of Al-Fares et al.: k pods of k/2 racks of k/2 hosts; Fig. 3 is k = 4.
fn fat_tree(k: u32) -> Fabric {
    let half = k / 2;
    let hosts = k * half * half;
    let (edge, upper) = (|pod: u32, i: u32| hosts + pod * k + i, |pod: u32, i: u32| hosts + pod * k + half + i);
    let mut cables: Vec<[u32; 2]> =
        (0..hosts).map(|host| [host, edge(host / (half * half), host / half % half)]).collect();
    for pod in 0..k {
        cables.extend((0..half * half).map(|pair| [edge(pod, pair / half), upper(pod, pair % half)]));
    }
    for pod in 0..k {
        cables.extend((0..half * half).map(|core| [upper(pod, core / half), hosts + k * k + core]));
    }
    Fabric::new(hosts, k * k + half * half, &cables).expect("a fabric")
}

fn request(number: u32, hosts: impl IntoIterator<Item = u32>) -> Request {
    Request {
        job_id: 0x100 | number,
        job_token: 7,
        hosts: hosts.into_iter().collect(),
        bytes: 1 << 30,
        window_max: 8,
        share_percent: 100,
    }
}

fn controller(k: u32) -> Controller {
    Controller::new(fat_tree(k), Policy::PAPER)
}

/// Every worker is a leaf, every switch but the root has its parent in the tree, and the ports belong to the same cables.
fn assert_is_tree(fabric: &Fabric, tree: &TreePlan, hosts: &[u32]) {
    let configs: BTreeMap<u32, TreeConfig> = tree.switches.iter().copied().collect();
    let mut reached = BTreeSet::new();
    let mut next = vec![tree.root];
    while let Some(switch) = next.pop() {
        let config = configs[&switch];
        assert_eq!(config.parent.is_none(), switch == tree.root);
        for port in (0..64).filter(|port| config.ports >> port & 1 == 1) {
            let (child, back) = fabric.neighbour(switch, port).expect("a port with a cable");
            if fabric.is_host(child) {
                assert!(reached.insert(child), "host {child} twice");
            } else {
                assert_eq!(configs[&child].parent, Some(back as u8));
                next.push(child);
            }
        }
    }
    assert_eq!(reached, hosts.iter().copied().collect());
}

#[test]
fn the_job_of_fig_3_gets_four_trees_that_part_at_the_spine() {
    let mut controller = controller(4);
    let hosts = [0, 1, 2, 3, 4, 6, 8];
    let plan = controller.place(&request(0, hosts)).expect("trees").clone();
    assert_eq!(plan.trees.len(), 4);
    let roots: BTreeSet<u32> = plan.trees.iter().map(|tree| tree.root).collect();
    assert_eq!(roots, (32..36).collect(), "the four core switches");
    plan.trees.iter().for_each(|tree| assert_is_tree(&controller.fabric, tree, &hosts));
    let core_cables = plan.trees.iter().flat_map(|tree| &tree.cables).filter(|&&cable| cable >= 32);
    assert_eq!(core_cables.clone().count(), core_cables.collect::<BTreeSet<_>>().len(), "no core cable twice");
    assert!(plan.reasons[0].contains("4 trees"), "{:?}", plan.reasons);
}

#[test]
fn two_trees_share_no_cable_between_switches() {
    let mut controller = Controller::new(fat_tree(4), Policy { tree_count_max: 2, ..Policy::PAPER });
    let plan = controller.place(&request(0, 0..16)).expect("trees");
    let cables = |tree: usize| plan.trees[tree].cables.iter().filter(|&&cable| cable >= 16).collect::<BTreeSet<_>>();
    assert!(cables(0).is_disjoint(&cables(1)));
}

#[test]
fn a_job_in_a_rack_has_one_tree_and_one_in_a_pod_as_many_as_the_pod_has_spines() {
    let mut controller = controller(4);
    let plan = controller.place(&request(0, [0, 1])).expect("trees").clone();
    assert_eq!((plan.trees.len(), plan.trees[0].root, plan.trees[0].switches.len()), (1, 16, 1));
    assert!(plan.reasons[0].contains("1 of up to 4"), "{:?}", plan.reasons);
    let plan = controller.place(&request(1, [4, 5, 6])).expect("trees").clone();
    assert_eq!(plan.trees.iter().map(|tree| tree.root).collect::<Vec<_>>(), [22, 23]);
    plan.trees.iter().for_each(|tree| assert_is_tree(&controller.fabric, tree, &[4, 5, 6]));
}

#[test]
fn jobs_keep_out_of_each_others_way_and_leave_nothing_behind() {
    let mut controller = Controller::new(fat_tree(4), Policy { tree_count_max: 1, ..Policy::PAPER });
    let root = |controller: &mut Controller, number, hosts: [u32; 2]| {
        controller.place(&request(number, hosts)).expect("a tree").trees[0].root
    };
    let first = root(&mut controller, 0, [0, 4]);
    let second = root(&mut controller, 1, [1, 5]);
    assert_ne!(first, second);
    let loads: u32 = (0..48).map(|cable| controller.load(cable)).sum();
    assert_eq!(loads, 2 * 6);
    assert!(controller.remove(0x100) && controller.remove(0x101) && !controller.remove(0x101));
    assert!((0..48).all(|cable| controller.load(cable) == 0));
    let groups: BTreeSet<u32> = (0..4)
        .map(|number| controller.place(&request(number, [2 * number, 15])).expect("a tree").trees[0].group)
        .collect();
    assert_eq!(groups.len(), 4, "each tree has an address of its own");
}

#[test]
fn the_1024_servers_of_section_7() {
    let mut controller = Controller::new(fat_tree(16), Policy { tree_count_max: 8, ..Policy::PAPER });
    let hosts: Vec<u32> = (100..196).collect();
    let plan = controller.place(&request(0, hosts.iter().copied())).expect("trees").clone();
    plan.trees.iter().for_each(|tree| assert_is_tree(&controller.fabric, tree, &hosts));
    let above = plan.trees.iter().flat_map(|tree| &tree.cables).filter(|&&cable| cable >= 1024);
    assert_eq!(above.clone().count(), above.collect::<BTreeSet<_>>().len(), "8 trees are disjoint above the hosts");
}

/// Ports that a job's trees do not wait for, by tree and switch.
fn left_out(plan: &Plan) -> Vec<Vec<u32>> {
    let of = |tree: &TreePlan| {
        let ports = |config: &TreeConfig| config.ports.count_ones() - u32::from(config.quorum);
        tree.switches.iter().map(|(_, config)| ports(config)).collect()
    };
    plan.trees.iter().map(of).collect()
}

#[test]
fn a_share_is_one_of_the_workers_and_spread_over_racks() {
    let mut controller = Controller::new(fat_tree(16), Policy::PAPER);
    let mut place = |number, share_percent, hosts: Vec<u32>| {
        let plan = controller.place(&Request { share_percent, ..request(number, hosts) }).expect("trees");
        left_out(plan)
    };
    // The paper's 0.94 and 0.88 are 15 and 14 of 16 workers.
    for (number, share, count) in [(0, 94, 1), (1, 88, 2), (2, 100, 0)] {
        let trees = place(number, share, (0..16).collect());
        assert!(trees.iter().all(|tree| tree.iter().sum::<u32>() == count), "{share}: {trees:?}");
    }
    // Thirteen racks, of which the first and the last have four workers. With 1 % racks wait for one worker each, and of the 12
    // that may be missing beyond these, one switch above does without a rack of eight.
    for (number, share, counts) in [(3, 94, (6, 0)), (4, 88, (12, 0)), (5, 1, (11 * 7 + 2 * 3, 1))] {
        let trees = place(number, share, (100..196).collect());
        assert_eq!(trees.len(), 4);
        for tree in &trees {
            let (racks, above) = tree.split_at(13);
            assert_eq!((racks.iter().sum::<u32>(), above.iter().sum::<u32>()), counts);
            assert!(share == 1 || racks.iter().all(|&count| count <= 1), "{racks:?}");
        }
        assert!(share != 94 || trees[0] != trees[1], "trees leave out workers of different racks");
    }
}

#[test]
fn where_each_rack_has_one_worker_switches_above_go_without() {
    let mut controller = Controller::new(fat_tree(8), Policy { tree_count_max: 1, ..Policy::PAPER });
    let hosts = (0..32).map(|rack| 4 * rack);
    let plan = controller.place(&Request { share_percent: 94, ..request(0, hosts) }).expect("trees");
    let TreePlan { switches, .. } = &plan.trees[0];
    let without = |&(_, config): &(u32, TreeConfig)| u32::from(config.quorum) < config.ports.count_ones();
    let ports: Vec<u32> =
        switches.iter().filter(|one| without(one)).map(|(_, config)| config.ports.count_ones()).collect();
    assert_eq!(ports, [4, 4], "two of 32 workers, in pods of four racks each");
}

/// Most workers that can be missing from a sum: at each switch the ports with the most of them.
fn missing_max(fabric: &Fabric, tree: &TreePlan) -> u32 {
    // Workers below, and those that may be missing of them; children come first.
    let mut known: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
    for &(switch, config) in &tree.switches {
        let child = |port| fabric.neighbour(switch, port).expect("a port with a cable").0;
        let ports = (0..64).filter(|port| config.ports >> port & 1 == 1).map(child);
        let mut ports: Vec<(u32, u32)> = ports.map(|child| known.get(&child).copied().unwrap_or((1, 0))).collect();
        ports.sort_by_key(|&(workers, missing)| Reverse(workers - missing));
        let without = ports.len() - usize::from(config.quorum);
        let whole: u32 = ports[..without].iter().map(|port| port.0).sum();
        let partly: u32 = ports[without..].iter().map(|port| port.1).sum();
        known.insert(switch, (ports.iter().map(|port| port.0).sum(), whole + partly));
    }
    known[&tree.root].1
}

#[test]
fn no_more_are_left_out_than_may_be_whichever_ports_are_late() {
    // A dumbbell: five hosts and, behind a cable, three.
    let mut cables: Vec<[u32; 2]> = (0..8).map(|host| [host, if host < 5 { 8 } else { 9 }]).collect();
    cables.push([8, 9]);
    let fabric = || Fabric::new(8, 2, &cables).expect("a fabric");
    for share_percent in 1..=100 {
        let mut controller = Controller::new(fabric(), Policy::PAPER);
        let plan = controller.place(&Request { share_percent, ..request(0, 0..8) }).expect("trees").clone();
        let allowed = (8 * (100 - u32::from(share_percent)) + 50) / 100;
        let most = plan.trees.iter().map(|tree| missing_max(&controller.fabric, tree)).max();
        assert!(most <= Some(allowed), "{share_percent}: {most:?} of {allowed}");
        // Two of the three behind the cable, and then three of the five, whose cable counts as three.
        assert!(!(63..=100).contains(&share_percent) || most == Some(allowed.min(2)), "{share_percent}: {most:?}");
    }
}

#[test]
fn what_cannot_be_placed_says_why() {
    let mut controller = controller(4);
    let mut refused = |request: Request| controller.place(&request).expect_err("no trees").clone();
    assert_eq!(
        refused(Request { bytes: 39_999_999, ..request(0, [0, 1]) }),
        Refusal::TooSmall { bytes: 39_999_999, bytes_min: 40_000_000 }
    );
    assert_eq!(refused(request(0, [0, 16])), Refusal::BadHost(16));
    assert_eq!(refused(request(0, [3, 0, 3])), Refusal::BadHost(3));
    assert_eq!(refused(request(0, [])), Refusal::NotConnected);
    assert_eq!(refused(Request { window_max: 6, ..request(0, [0, 1]) }), Refusal::BadRequest);
    assert_eq!(refused(Request { share_percent: 0, ..request(0, [0, 1]) }), Refusal::BadRequest);
    controller.place(&request(0, [0, 1])).expect("a tree");
    assert_eq!(controller.place(&request(0, [2, 3])).expect_err("twice"), Refusal::InUse);
    assert!(format!("{}", Refusal::BadHost(3)).contains("host 3"));
}

#[test]
fn hosts_without_a_common_switch_are_refused_and_bad_cables_too() {
    let two_stars = Fabric::new(4, 2, &[[0, 4], [1, 4], [2, 5], [3, 5]]).expect("a fabric");
    let mut controller = Controller::new(two_stars, Policy::PAPER);
    assert_eq!(controller.place(&request(0, [0, 2])).expect_err("apart"), Refusal::NotConnected);
    assert_eq!(Fabric::new(1, 1, &[[0, 5]]).expect_err("no such node"), FabricError::BadCable(0));
    assert_eq!(Fabric::new(2, 1, &[[0, 2]]).expect_err("no cable"), FabricError::BadHost(1));
    assert_eq!(Fabric::new(2, 1, &[[0, 1]]).expect_err("no switch"), FabricError::BadHost(0));
}

#[test]
fn a_switch_with_more_ports_than_a_bitmap_is_refused() {
    let cables: Vec<[u32; 2]> = (0..65).map(|host| [host, 65]).collect();
    let mut controller = Controller::new(Fabric::new(65, 1, &cables).expect("a fabric"), Policy::PAPER);
    assert_eq!(controller.place(&request(0, 0..65)).expect_err("too many"), Refusal::TooManyPorts(65));
    assert!(controller.place(&request(0, 0..64)).is_ok());
    assert!(controller.load(64) == 0, "a refused job leaves nothing behind");
}

#[test]
fn named_roots_are_taken_as_they_are_and_count_as_load() {
    let mut controller = controller(4);
    let first = controller.place(&request(0, 0..16)).expect("trees").trees[0].root;
    let hosts: Vec<u32> = (0..16).collect();
    let plan = controller.place_at(&request(1, 0..16), &[first, first]).expect("a root may be named twice").clone();
    assert_eq!(plan.trees.iter().map(|tree| tree.root).collect::<Vec<_>>(), [first, first]);
    plan.trees.iter().for_each(|tree| assert_is_tree(&controller.fabric, tree, &hosts));
    assert_eq!(controller.load(plan.trees[0].cables[0]), 3);
    let edge = 16;
    assert_eq!(controller.place_at(&request(2, 0..16), &[edge]), Err(Refusal::NotConnected), "not above all hosts");
    assert!(controller.remove(request(1, []).job_id));
    assert_eq!(controller.load(plan.trees[0].cables[0]), 1);
}

/// Switches with a host each, host i at switch i, and cables between the switches.
fn row(count: u32, between: impl IntoIterator<Item = [u32; 2]>) -> Fabric {
    let cables = (0..count).map(|host| [host, count + host]);
    let between = between.into_iter().map(|ends| ends.map(|switch| count + switch));
    Fabric::new(count, count, &cables.chain(between).collect::<Vec<_>>()).expect("a fabric")
}

fn ring(count: u32) -> Fabric {
    row(count, (0..count).map(|switch| [switch, (switch + 1) % count]))
}

#[test]
fn without_a_switch_above_all_workers_the_middle_ones_are_roots() {
    let roots = |fabric: Fabric, hosts: &[u32]| fabric.roots(hosts).expect("roots");
    assert_eq!(roots(ring(5), &[0, 1, 2, 3, 4]), (1, vec![5, 6, 7, 8, 9]), "all are alike");
    assert_eq!(roots(ring(5), &[0, 1, 2]), (1, vec![6]), "the one in the middle");
    assert_eq!(roots(ring(5), &[0, 1]), (1, vec![5, 6]));
    let line = || row(4, [[0, 1], [1, 2], [2, 3]]);
    assert_eq!(roots(line(), &[0, 3]), (1, vec![5, 6]), "both two from the farther one");
    assert_eq!(roots(line(), &[0, 2, 3]), (1, vec![6]), "and this one nearer to all together");
    assert_eq!(row(3, [[0, 1]]).roots(&[0, 2]), None, "no way");
}

#[test]
fn trees_of_a_ring_take_the_shortest_ways_and_part_as_far_as_they_can() {
    let mut controller = Controller::new(ring(4), Policy::PAPER);
    let hosts = [0, 1, 2, 3];
    let plan = controller.place(&request(0, hosts)).expect("trees").clone();
    plan.trees.iter().for_each(|tree| assert_is_tree(&controller.fabric, tree, &hosts));
    let cables = |tree: &TreePlan| tree.cables.iter().copied().filter(|&cable| cable >= 4).collect::<BTreeSet<u32>>();
    let found: Vec<(u32, BTreeSet<u32>)> = plan.trees.iter().map(|tree| (tree.root, cables(tree))).collect();
    // Cables 4 to 7 go round. Of two ways to the far side, that by the lower port is taken: where all begin, cable 4 from switch 4.
    let expected = [(4, [4, 5, 7]), (6, [4, 5, 6]), (7, [5, 6, 7]), (5, [4, 5, 7])];
    assert_eq!(found, expected.map(|(root, cables)| (root, cables.into())));
    assert!(plan.reasons[0].starts_with("4 trees") && plan.reasons[0].contains("4 are nearest"), "{:?}", plan.reasons);
    let said = &controller.place(&request(1, [0, 1])).expect("trees").reasons[0];
    assert!(said.contains("2 of up to 4") && said.contains("no switch has all workers below it"), "{said}");
    assert!(said.contains("place the workers where more switches are as near"), "{said}");
}
