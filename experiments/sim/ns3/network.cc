// The flows of a `fanin sim` scenario in ns-3: the same hosts, cables, rates, delays, queues and marks, and the same path for every flow.
//
// Reads what `cargo run -p fanin-sim --example ns3_input -- SCENARIO.toml` prints from its input, and prints a line for each flow and one for the run:
//
//   flow NUMBER received_bytes=.. first_ns=.. last_ns=..   last_ns is 0 unless all of it has arrived
//   run hops=.. marked=.. dropped=.. events=.. cpu_s=.. peak_kib=..
//
// Only what is alike in both can be compared. So segments carry no options, every segment is acknowledged, hosts have a deep
// queue and no queue discipline, and switches mark by the length of the queue at the moment. Each flow has two addresses of its own, one
// for each direction, so that a node finds its way by an index and not by searching a table: that also helps ns-3's speed.
//
//   c++ -O2 network.cc -o network $(pkg-config --cflags --libs ns3-core ns3-network ns3-internet ns3-point-to-point ns3-traffic-control)

#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"
#include "ns3/traffic-control-module.h"

#include <sys/resource.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

using namespace ns3;

namespace
{

constexpr uint32_t kFirstAddress = 0x0a000001;
constexpr uint32_t kSwitchAddress = 0xac100001;
constexpr uint16_t kLocal = 0xfffe;
constexpr uint16_t kNone = 0xffff;
constexpr uint32_t kWriteBytes = 14000;
constexpr uint16_t kPort = 5000;
constexpr uint32_t kSocketBufferBytes = 2 << 20;

[[noreturn]] void
Fail(const std::string& why)
{
    std::cerr << why << std::endl;
    std::exit(1);
}

// A word that must come next in the input.
void
Expect(const std::string& word)
{
    std::string found;
    if (!(std::cin >> found) || found != word)
    {
        Fail("the input has '" + found + "' where '" + word + "' was expected");
    }
}

template <typename T>
T
Read(const char* what)
{
    T value;
    if (!(std::cin >> value))
    {
        Fail(std::string("the input ends or is no number where it should say: ") + what);
    }
    return value;
}

// Routes by the index of an address.
class PathRouting : public Ipv4RoutingProtocol
{
  public:
    static TypeId GetTypeId()
    {
        static TypeId id = TypeId("fanin::PathRouting").SetParent<Ipv4RoutingProtocol>();
        return id;
    }

    void SetTable(size_t addresses)
    {
        m_interfaces.assign(addresses, kNone);
    }

    void Set(size_t address, uint16_t interface)
    {
        m_interfaces.at(address) = interface;
    }

    Ptr<Ipv4Route> RouteOutput(Ptr<Packet>, const Ipv4Header& header, Ptr<NetDevice>, Socket::SocketErrno& error) override
    {
        uint16_t interface = Find(header.GetDestination());
        if (interface == kNone || interface == kLocal)
        {
            error = Socket::ERROR_NOROUTETOHOST;
            return nullptr;
        }
        error = Socket::ERROR_NOTERROR;
        Ptr<Ipv4Route> route = Route(header, interface);
        // A socket takes its own address from here: the other one of the flow.
        uint32_t index = header.GetDestination().Get() - kFirstAddress;
        route->SetSource(Ipv4Address(kFirstAddress + (index ^ 1)));
        return route;
    }

    bool RouteInput(Ptr<const Packet> packet,
                    const Ipv4Header& header,
                    Ptr<const NetDevice> device,
                    UnicastForwardCallback forward,
                    MulticastForwardCallback,
                    LocalDeliverCallback deliver,
                    ErrorCallback) override
    {
        uint16_t interface = Find(header.GetDestination());
        if (interface == kLocal)
        {
            deliver(packet, header, m_ipv4->GetInterfaceForDevice(device));
            return true;
        }
        if (interface == kNone)
        {
            Fail("a packet is at a node that is not on its path");
        }
        forward(Route(header, interface), packet, header);
        return true;
    }

    void NotifyInterfaceUp(uint32_t) override
    {
    }

    void NotifyInterfaceDown(uint32_t) override
    {
    }

    void NotifyAddAddress(uint32_t, Ipv4InterfaceAddress) override
    {
    }

    void NotifyRemoveAddress(uint32_t, Ipv4InterfaceAddress) override
    {
    }

    void SetIpv4(Ptr<Ipv4> ipv4) override
    {
        m_ipv4 = ipv4;
    }

    void PrintRoutingTable(Ptr<OutputStreamWrapper>, Time::Unit) const override
    {
    }

  private:
    uint16_t Find(Ipv4Address address) const
    {
        size_t index = address.Get() - kFirstAddress;
        return index < m_interfaces.size() ? m_interfaces[index] : kNone;
    }

    Ptr<Ipv4Route> Route(const Ipv4Header& header, uint16_t interface)
    {
        Ptr<Ipv4Route> route = Create<Ipv4Route>();
        route->SetDestination(header.GetDestination());
        route->SetSource(header.GetSource());
        route->SetGateway(Ipv4Address::GetZero());
        route->SetOutputDevice(m_ipv4->GetNetDevice(interface));
        return route;
    }

    Ptr<Ipv4> m_ipv4;
    std::vector<uint16_t> m_interfaces;
};

class PathRoutingHelper : public Ipv4RoutingHelper
{
  public:
    PathRoutingHelper* Copy() const override
    {
        return new PathRoutingHelper(*this);
    }

    Ptr<Ipv4RoutingProtocol> Create(Ptr<Node>) const override
    {
        return CreateObject<PathRouting>();
    }
};

struct Direction
{
    uint64_t rateBps;
    uint64_t delayPs;
    uint64_t queueBytes;
    uint64_t markBytes;
};

struct Cable
{
    uint32_t ends[2];
    Direction directions[2];
    Ptr<PointToPointNetDevice> devices[2];
    uint16_t interfaces[2];
};

struct Flow
{
    uint32_t number;
    uint32_t source;
    uint32_t destination;
    uint64_t bytes;
    uint64_t startPs;
    Ptr<Socket> sender;
    Ptr<Socket> listener;
    uint64_t written = 0;
    uint64_t received = 0;
    int64_t firstNs = 0;
    int64_t lastNs = 0;

    void Write()
    {
        while (bytes == 0 || written < bytes)
        {
            uint64_t left = bytes == 0 ? kWriteBytes : bytes - written;
            uint32_t size = std::min<uint64_t>({left, kWriteBytes, sender->GetTxAvailable()});
            if (size == 0)
            {
                return;
            }
            int sent = sender->Send(Create<Packet>(size));
            if (sent <= 0)
            {
                return;
            }
            written += sent;
        }
    }

    void Connected(Ptr<Socket>)
    {
        firstNs = Simulator::Now().GetNanoSeconds();
        Write();
    }

    void Failed(Ptr<Socket>)
    {
        Fail("flow " + std::to_string(number) + " could not connect");
    }

    void Space(Ptr<Socket>, uint32_t)
    {
        if (firstNs > 0)
        {
            Write();
        }
    }

    void Accepted(Ptr<Socket> socket, const Address&)
    {
        socket->SetRecvCallback(MakeCallback(&Flow::Receive, this));
    }

    void Receive(Ptr<Socket> socket)
    {
        while (Ptr<Packet> packet = socket->Recv())
        {
            received += packet->GetSize();
        }
        if (bytes > 0 && received >= bytes && lastNs == 0)
        {
            lastNs = Simulator::Now().GetNanoSeconds();
        }
    }
};

Ipv4Address
DataAddress(uint32_t flow)
{
    return Ipv4Address(kFirstAddress + 2 * flow);
}

Ipv4Address
AckAddress(uint32_t flow)
{
    return Ipv4Address(kFirstAddress + 2 * flow + 1);
}

// Whether it is one that reacts to marks.
bool
SetTransport()
{
    Expect("transport");
    std::string congestion = Read<std::string>("congestion");
    double gain = Read<double>("DCTCP's gain");
    uint32_t window = Read<uint32_t>("initial window");
    uint64_t initialUs = Read<uint64_t>("initial timeout, us");
    uint64_t leastUs = Read<uint64_t>("least timeout, us");
    uint32_t segment = Read<uint32_t>("bytes of a segment");
    bool isDctcp = congestion == "dctcp";
    Config::SetDefault("ns3::TcpL4Protocol::SocketType",
                       TypeIdValue(isDctcp ? TcpDctcp::GetTypeId() : TcpNewReno::GetTypeId()));
    Config::SetDefault("ns3::TcpSocketBase::UseEcn", EnumValue(isDctcp ? TcpSocketState::On : TcpSocketState::Off));
    Config::SetDefault("ns3::TcpDctcp::DctcpShiftG", DoubleValue(gain));
    Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(window));
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(segment));
    Config::SetDefault("ns3::TcpSocket::DelAckCount", UintegerValue(1));
    Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(kSocketBufferBytes));
    Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(kSocketBufferBytes));
    Config::SetDefault("ns3::TcpSocketBase::Timestamp", BooleanValue(false));
    Config::SetDefault("ns3::TcpSocketBase::Sack", BooleanValue(false));
    Config::SetDefault("ns3::TcpSocketBase::LimitedTransmit", BooleanValue(false));
    Config::SetDefault("ns3::TcpSocketBase::MinRto", TimeValue(MicroSeconds(leastUs)));
    Config::SetDefault("ns3::TcpSocketBase::ClockGranularity", TimeValue(MicroSeconds(1)));
    // Without a measurement the deviation is 0, so this is the timeout.
    Config::SetDefault("ns3::RttEstimator::InitialEstimation", TimeValue(MicroSeconds(initialUs)));
    return isDctcp;
}

// Marks above a length, at once and all; nothing is dropped before the queue is full. One packet waits in the device, not in the
// discipline, and counts too.
void
AddQueueDiscipline(Ptr<PointToPointNetDevice> device, const Direction& direction, uint32_t packetBytes, bool hasMarks)
{
    double most = double(direction.queueBytes) - packetBytes;
    // Without ECN the discipline would drop what it cannot mark.
    double mark = hasMarks ? double(direction.markBytes) - packetBytes : 2 * double(direction.queueBytes);
    TrafficControlHelper helper;
    helper.SetRootQueueDisc("ns3::RedQueueDisc",
                            "MaxSize",
                            QueueSizeValue(QueueSize(QueueSizeUnit::BYTES, uint32_t(most))),
                            "MeanPktSize",
                            UintegerValue(packetBytes),
                            "MinTh",
                            DoubleValue(mark - 1),
                            "MaxTh",
                            DoubleValue(mark),
                            "QW",
                            DoubleValue(1),
                            "Gentle",
                            BooleanValue(false),
                            "UseEcn",
                            BooleanValue(true),
                            "UseHardDrop",
                            BooleanValue(false),
                            "LinkBandwidth",
                            DataRateValue(DataRate(direction.rateBps)),
                            "LinkDelay",
                            TimeValue(PicoSeconds(direction.delayPs)));
    helper.Install(device);
}

void
AddCable(Cable& cable, const NodeContainer& nodes, uint32_t hosts, uint32_t packetBytes, bool hasMarks)
{
    Ptr<PointToPointChannel> channel = CreateObject<PointToPointChannel>();
    channel->SetAttribute("Delay", TimeValue(PicoSeconds(cable.directions[0].delayPs)));
    for (int end = 0; end < 2; ++end)
    {
        Ptr<PointToPointNetDevice> device = CreateObject<PointToPointNetDevice>();
        device->SetAddress(Mac48Address::Allocate());
        device->SetDataRate(DataRate(cable.directions[end].rateBps));
        bool isHost = cable.ends[end] < hosts;
        Ptr<DropTailQueue<Packet>> queue = CreateObject<DropTailQueue<Packet>>();
        queue->SetMaxSize(QueueSize(QueueSizeUnit::PACKETS, isHost ? 1000000 : 1));
        device->SetQueue(queue);
        Ptr<Node> node = nodes.Get(cable.ends[end]);
        node->AddDevice(device);
        if (!isHost)
        {
            // Has the discipline wait until the device's queue has room.
            Ptr<NetDeviceQueueInterface> interface = CreateObject<NetDeviceQueueInterface>();
            interface->GetTxQueue(0)->ConnectQueueTraces(queue);
            device->AggregateObject(interface);
        }
        device->Attach(channel);
        cable.devices[end] = device;
        Ptr<Ipv4> ipv4 = node->GetObject<Ipv4>();
        uint32_t interface = ipv4->AddInterface(device);
        cable.interfaces[end] = uint16_t(interface);
        if (!isHost)
        {
            AddQueueDiscipline(device, cable.directions[end], packetBytes, hasMarks);
            ipv4->AddAddress(interface, Ipv4InterfaceAddress(Ipv4Address(kSwitchAddress + cable.ends[end]), Ipv4Mask::GetOnes()));
        }
        ipv4->SetUp(interface);
    }
}

// Follows a path, and tells each node on it where packets to this address go.
void
AddPath(uint32_t from, uint32_t to, size_t address, std::vector<Cable>& cables, const std::vector<Ptr<PathRouting>>& routing)
{
    uint32_t node = from;
    uint32_t count = Read<uint32_t>("length of a path");
    for (uint32_t step = 0; step < count; ++step)
    {
        const Cable& cable = cables.at(Read<uint32_t>("cable of a path"));
        int end = cable.ends[0] == node ? 0 : 1;
        if (cable.ends[end] != node)
        {
            Fail("a path takes a cable that is not at its node");
        }
        routing[node]->Set(address, cable.interfaces[end]);
        node = cable.ends[1 - end];
    }
    if (node != to)
    {
        Fail("a path does not end at its host");
    }
    routing[node]->Set(address, kLocal);
}

void
Start(Flow* flow)
{
    flow->sender->Connect(InetSocketAddress(DataAddress(flow->number), kPort));
}

void
AddFlow(Flow& flow, const NodeContainer& nodes)
{
    auto address = [&](uint32_t host, Ipv4Address own) {
        nodes.Get(host)->GetObject<Ipv4>()->AddAddress(1, Ipv4InterfaceAddress(own, Ipv4Mask::GetOnes()));
    };
    address(flow.source, AckAddress(flow.number));
    address(flow.destination, DataAddress(flow.number));
    flow.listener = Socket::CreateSocket(nodes.Get(flow.destination), TcpSocketFactory::GetTypeId());
    flow.listener->Bind(InetSocketAddress(DataAddress(flow.number), kPort));
    flow.listener->Listen();
    flow.listener->SetAcceptCallback(MakeNullCallback<bool, Ptr<Socket>, const Address&>(),
                                     MakeCallback(&Flow::Accepted, &flow));
    flow.sender = Socket::CreateSocket(nodes.Get(flow.source), TcpSocketFactory::GetTypeId());
    flow.sender->Bind(InetSocketAddress(AckAddress(flow.number), 0));
    flow.sender->SetConnectCallback(MakeCallback(&Flow::Connected, &flow), MakeCallback(&Flow::Failed, &flow));
    flow.sender->SetSendCallback(MakeCallback(&Flow::Space, &flow));
    Simulator::Schedule(PicoSeconds(flow.startPs), &Start, &flow);
}

Direction
ReadDirection()
{
    Direction direction;
    direction.rateBps = Read<uint64_t>("rate");
    direction.delayPs = Read<uint64_t>("delay");
    direction.queueBytes = Read<uint64_t>("queue");
    direction.markBytes = Read<uint64_t>("threshold of marks");
    return direction;
}

double
CpuSeconds()
{
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    auto seconds = [](const timeval& time) { return time.tv_sec + 1e-6 * time.tv_usec; };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void
Print(const std::vector<Flow>& flows, const std::vector<Cable>& cables, uint32_t hosts, double cpuSeconds)
{
    for (const Flow& flow : flows)
    {
        std::cout << "flow " << flow.number << " received_bytes=" << flow.received << " first_ns=" << flow.firstNs
                  << " last_ns=" << flow.lastNs << "\n";
    }
    uint64_t hops = 0;
    uint64_t marked = 0;
    uint64_t dropped = 0;
    for (const Cable& cable : cables)
    {
        for (int end = 0; end < 2; ++end)
        {
            Ptr<Queue<Packet>> queue = cable.devices[end]->GetQueue();
            hops += queue->GetTotalReceivedPackets() - queue->GetNPackets();
            if (cable.ends[end] >= hosts)
            {
                Ptr<TrafficControlLayer> layer = cable.devices[end]->GetNode()->GetObject<TrafficControlLayer>();
                QueueDisc::Stats stats = layer->GetRootQueueDiscOnDevice(cable.devices[end])->GetStats();
                marked += stats.nTotalMarkedPackets;
                dropped += stats.nTotalDroppedPackets;
            }
        }
    }
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    std::cout << "run hops=" << hops << " marked=" << marked << " dropped=" << dropped
              << " events=" << Simulator::GetEventCount() << " cpu_s=" << cpuSeconds << " peak_kib=" << usage.ru_maxrss << std::endl;
}

} // namespace

int
main()
{
    GlobalValue::Bind("SchedulerType", StringValue("ns3::PriorityQueueScheduler"));
    Time::SetResolution(Time::PS);
    Expect("network");
    uint32_t hosts = Read<uint32_t>("hosts");
    uint32_t switches = Read<uint32_t>("switches");
    std::vector<Cable> cables(Read<uint32_t>("cables"));
    std::vector<Flow> flows(Read<uint32_t>("flows"));
    uint32_t packetBytes = Read<uint32_t>("bytes of a packet");
    uint64_t durationUs = Read<uint64_t>("duration, us");
    bool hasMarks = SetTransport();

    NodeContainer nodes;
    nodes.Create(hosts + switches);
    InternetStackHelper stack;
    stack.SetRoutingHelper(PathRoutingHelper());
    stack.SetIpv6StackInstall(false);
    stack.Install(nodes);
    std::vector<Ptr<PathRouting>> routing;
    for (uint32_t node = 0; node < nodes.GetN(); ++node)
    {
        routing.push_back(DynamicCast<PathRouting>(nodes.Get(node)->GetObject<Ipv4>()->GetRoutingProtocol()));
        routing.back()->SetTable(2 * flows.size());
    }
    for (Cable& cable : cables)
    {
        Expect("cable");
        cable.ends[0] = Read<uint32_t>("end of a cable");
        cable.ends[1] = Read<uint32_t>("end of a cable");
        cable.directions[0] = ReadDirection();
        cable.directions[1] = ReadDirection();
        AddCable(cable, nodes, hosts, packetBytes, hasMarks);
    }
    for (uint32_t number = 0; number < flows.size(); ++number)
    {
        Expect("flow");
        Flow& flow = flows[number];
        flow.number = number;
        flow.source = Read<uint32_t>("source");
        flow.destination = Read<uint32_t>("destination");
        flow.bytes = Read<uint64_t>("bytes of a flow");
        flow.startPs = Read<uint64_t>("start of a flow");
        AddPath(flow.source, flow.destination, 2 * number, cables, routing);
        AddPath(flow.destination, flow.source, 2 * number + 1, cables, routing);
        AddFlow(flow, nodes);
    }
    Simulator::Stop(MicroSeconds(durationUs));
    double before = CpuSeconds();
    Simulator::Run();
    Print(flows, cables, hosts, CpuSeconds() - before);
    Simulator::Destroy();
    return 0;
}
