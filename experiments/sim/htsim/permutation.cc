// experiments/sim/permutation.toml in csg-htsim: a fat tree of switches with K ports, one DCTCP flow from each host to the one half of all hosts on,
// acknowledgements on a path of their own over real links. For compare.py, which builds it.
//
//   permutation K SIMULATED_MS    prints hops=.. cpu_s=.. peak_kib=..
//
// Each hop is two of htsim's events, the end of a queue's service and the end of a pipe; what else there is (starts, timers) is a few
// of the flows' number. Marks begin at htsim's own 15 packets, which its topology does not let one choose: shorter queues than in the other
// simulators, which is no disadvantage to its speed.

#include <sys/resource.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <vector>

#include "config.h"
#include "dctcp.h"
#include "eventlist.h"
#include "fat_tree_topology.h"
#include "network.h"
#include "tcp.h"

static double cpu_seconds() {
    rusage usage = rusage();
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + 1e-6 * (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

// One of the equal paths; the others are of no more use.
static Route* draw_path(FatTreeTopology& topology, uint32_t from, uint32_t to) {
    std::vector<const Route*>* paths = topology.get_bidir_paths(from, to, false);
    size_t choice = rand() % paths->size();
    Route* route = new Route(*paths->at(choice));
    for (size_t i = 0; i < paths->size(); i++)
        delete paths->at(i);
    delete paths;
    return route;
}

int main(int argc, char** argv) {
    if (argc != 3) {
        std::cerr << "permutation K SIMULATED_MS" << std::endl;
        return 2;
    }
    uint32_t k = atoi(argv[1]);
    uint32_t hosts = k * k * k / 4;
    EventList& events = EventList::getTheEventList();
    events.setEndtime(timeFromUs(1000 * atof(argv[2])));
    srand(1);
    Packet::set_packet_size(1500);
    FatTreeTopology topology(hosts, speedFromMbps(10000.0), memFromPkt(700), NULL, &events, NULL, ECN, timeFromUs(1.0), 0);
    TcpRtxTimerScanner timers(timeFromMs(10), events);
    for (uint32_t host = 0; host < hosts; host++) {
        uint32_t other = (host + hosts / 2) % hosts;
        DCTCPSrc* source = new DCTCPSrc(NULL, NULL, events);
        TcpSink* sink = new TcpSink();
        Route* out = draw_path(topology, host, other);
        Route* back = draw_path(topology, other, host);
        out->push_back(sink);
        back->push_back(source);
        timers.registerTcp(*source);
        source->connect(*out, *back, *sink, 0);
    }
    double before = cpu_seconds();
    uint64_t count = 0;
    while (EventList::doNextEvent())
        count++;
    double seconds = cpu_seconds() - before;
    rusage usage = rusage();
    getrusage(RUSAGE_SELF, &usage);
    std::cout << "\nhops=" << count / 2 << " cpu_s=" << seconds << " peak_kib=" << usage.ru_maxrss << std::endl;
    return 0;
}
