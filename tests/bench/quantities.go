package main

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/beeline-lb/beeline/pkg/model"
)

// quantity is something that is measured.
type quantity struct {
	key     string
	section string
	title   string
	unit    string
	bound   bound
	bar     float64
	// p99 says that the 99th percentile is meant, not the median.
	p99 bool
}

// socketQuantities are measured for each family.
var socketQuantities = slices.Concat([]quantity{
	{key: "connect/plain", title: "UDP connect(), no program", unit: "ns"},
	{key: "connect/empty", title: "an empty program, on top of that", unit: "ns"},
	{key: "connect/none", title: "no Service, on top of the empty program", unit: "ns", bound: atMost, bar: 40},
	{key: "connect/service", title: "ClusterIP, on top of the empty program", unit: "ns", bound: atMost, bar: 100},
	{key: "connect/affinity", title: "session affinity, on top of the ClusterIP", unit: "ns", bound: atMost, bar: 60},
	{key: "fresh/plain", title: "UDP socket+connect+close, no program", unit: "ns"},
	{key: "fresh/none", title: "new socket, no Service, on top of the empty program", unit: "ns"},
	{key: "fresh/service", title: "new socket, ClusterIP, on top of the empty program", unit: "ns", bound: atMost, bar: 650},
}, algorithmQuantities(), []quantity{
	{key: "resolver/plain", title: "UDP socket+sendto+recvfrom+close, straight, no program", unit: "ns"},
	{key: "resolver/none", title: "the same in a served cgroup, on top of that", unit: "ns"},
	{key: "resolver/service", title: "the same at a ClusterIP, on top of no program", unit: "ns", bound: atMost, bar: 1000},
	{key: "resolver/times", title: "the same at a ClusterIP, against straight and no program", unit: "times"},
	{key: "resolver/connect/plain", title: "UDP socket+connect+send+recv+close, straight, no program", unit: "ns"},
	{key: "resolver/connect/none", title: "the same in a served cgroup, on top of that", unit: "ns"},
	{key: "resolver/connect/service", title: "the same at a ClusterIP, on top of no program", unit: "ns", bound: atMost, bar: 700},
	{key: "resolver/connect/times", title: "the same at a ClusterIP, against straight and no program", unit: "times"},
	{key: "monitor/connect/nobody", title: "UDP connect() at a ClusterIP while nobody listens, on top of programs without events", unit: "ns", bound: atMost, bar: 15},
	{key: "monitor/new/nobody", title: "first packet of a TCP connection to a NodePort at tc while nobody listens, on top of programs without events", unit: "ns", bound: atMost, bar: 15},
	{key: "monitor/flow/nobody", title: "one of a known flow, the same", unit: "ns"},
	{key: "monitor/connect/limit", title: "UDP connect() at a ClusterIP while one listens whose limit is reached, on top of nobody", unit: "ns"},
	{key: "monitor/connect/all", title: "the same while one is told each, on top of nobody", unit: "ns"},
	{key: "monitor/drop", title: "a packet that is dropped, restoring it included", unit: "ns"},
	{key: "monitor/drop/limit", title: "the same while one listens whose limit is reached, on top of nobody", unit: "ns", bound: atMost, bar: 20},
	{key: "monitor/drop/all", title: "the same while one is told each, on top of nobody", unit: "ns"},
	{key: "monitor/flood/rate", title: "packets that come in by a device and are dropped, per second of one core", unit: "million/s"},
	{key: "monitor/flood/limit", title: "the same while one listens whose limit is reached", unit: "of that", bound: atLeast, bar: 0.98},
	{key: "monitor/flood/all", title: "the same while one is told each", unit: "of that"},
	{key: "monitor/flood/counted", title: "drops that the listener at its limit hears of or counts", unit: "of all", bound: atLeast, bar: 1},
	{key: "monitor/flood/told", title: "drops that it hears of", unit: "of all"},
	{key: "tcp/rate/plain", title: "TCP connect+close, no program", unit: "1/s"},
	{key: "tcp/rate", title: "TCP connect+close through a ClusterIP", unit: "of that", bound: atLeast, bar: 0.95},
	{key: "tcp/rate/counted", title: "the same with traffic counted, to without", unit: "of that"},
	{key: "tcp/bulk/plain", title: "bytes over one connection, no program", unit: "GB/s"},
	{key: "tcp/bulk", title: "bytes over one connection through a ClusterIP", unit: "of that", bound: likely, bar: 1},
})

// packetQuantities are measured for each family. What is net of an empty program is
// so whether its title says it or not.
var packetQuantities = []quantity{
	{key: "packets/empty", title: "an empty program, restoring the packet included", unit: "ns"},
	{key: "packets/floor", title: "floor: parse, one lookup, rewrite", unit: "ns"},
	{key: "packets/inserts", title: "two LRU inserts", unit: "ns"},
	{key: "packets/none/udp", title: "UDP packet, no Service", unit: "ns"},
	{key: "packets/none/udp/floors", title: "UDP packet, no Service", unit: "floors", bound: atMost, bar: 2},
	{key: "packets/none/udp/both", title: "UDP packet, no Service, ingress and egress", unit: "ns"},
	{key: "packets/none/udp/both/floors", title: "UDP packet, no Service, ingress and egress", unit: "floors", bound: atMost, bar: 1.8},
	{key: "packets/none/tcp", title: "TCP packet, no SYN, no Service", unit: "ns"},
	{key: "packets/none/tcp/floors", title: "TCP packet, no SYN, no Service", unit: "floors", bound: atMost, bar: 2},
	{key: "packets/none/tcp/both", title: "TCP packet, no SYN, no Service, ingress and egress", unit: "ns"},
	{key: "packets/none/tcp/both/floors", title: "TCP packet, no SYN, no Service, ingress and egress", unit: "floors", bound: atMost, bar: 1.3},
	{key: "packets/flow", title: "known flow to another node", unit: "ns"},
	{key: "packets/flow/floors", title: "known flow to another node", unit: "floors", bound: atMost, bar: 5},
	{key: "packets/flow/both", title: "known flow to another node, ingress and egress", unit: "ns"},
	{key: "packets/flow/both/floors", title: "known flow to another node, ingress and egress", unit: "floors", bound: atMost, bar: 3},
	{key: "packets/flow/affinity", title: "known flow to another node, session affinity", unit: "ns"},
	{key: "packets/flow/affinity/floors", title: "known flow to another node, session affinity", unit: "floors", bound: atMost, bar: 5},
	{key: "packets/flow/sampled", title: "known flow to another node, traffic of others counted", unit: "ns"},
	{key: "packets/flow/sampled/floors", title: "known flow to another node, traffic of others counted", unit: "floors"},
	{key: "packets/flow/counted", title: "known flow to another node, its traffic counted", unit: "ns"},
	{key: "packets/flow/counted/floors", title: "known flow to another node, its traffic counted", unit: "floors"},
	{key: "packets/reply", title: "reply from another node", unit: "ns"},
	{key: "packets/reply/floors", title: "reply from another node", unit: "floors", bound: atMost, bar: 5},
	{key: "packets/reply/both", title: "reply from another node, ingress and egress", unit: "ns"},
	{key: "packets/reply/both/floors", title: "reply from another node, ingress and egress", unit: "floors", bound: atMost, bar: 3},
	{key: "packets/tunnel", title: "known flow with direct server return, put into the tunnel", unit: "ns"},
	{key: "packets/tunnel/floors", title: "known flow with direct server return, put into the tunnel", unit: "floors", bound: atMost, bar: 4},
	{key: "packets/new", title: "new flow to another node", unit: "ns"},
	{key: "packets/new/all/floors", title: "new flow to another node, in all", unit: "floors"},
	{key: "packets/new/floors", title: "new flow to another node, less two LRU inserts", unit: "floors", bound: atMost, bar: 8},
	{key: "packets/new/udp", title: "new flow of UDP to another node", unit: "ns"},
	{key: "packets/new/udp/all/floors", title: "new flow of UDP to another node, in all", unit: "floors"},
	{key: "packets/new/udp/floors", title: "new flow of UDP to another node, less two LRU inserts", unit: "floors"},
	{key: "packets/new/affinity", title: "new flow to another node, session affinity", unit: "ns"},
	{key: "packets/new/affinity/all/floors", title: "new flow to another node, session affinity, in all", unit: "floors"},
	{key: "packets/new/affinity/floors", title: "new flow to another node, session affinity, less two LRU inserts", unit: "floors"},
}

// xdpBars are the bars of the XDP program where they are not those of packets.
var xdpBars = map[string]float64{
	"xdp/none/udp/floors":      1.3,
	"xdp/none/tcp/floors":      1.05,
	"xdp/flow/floors":          1.5,
	"xdp/flow/affinity/floors": 3.5,
	"xdp/reply/floors":         1.5,
	"xdp/tunnel/floors":        2.3,
	"xdp/new/floors":           5,
	"xdp/new/all/floors":       20,
	"xdp/new/udp/all/floors":   21,
}

// xdpQuantities are what is measured of packets, for the XDP program.
func xdpQuantities() []quantity {
	var list []quantity
	for _, q := range packetQuantities {
		q.key = "xdp" + strings.TrimPrefix(q.key, "packets")
		if bar, ok := xdpBars[q.key]; ok {
			q.bound, q.bar = atMost, bar
		}
		list = append(list, q)
	}
	return list
}

// xdpFlowQuantities are measured for each family.
var xdpFlowQuantities = []quantity{
	{key: "xdp/flows/floor", title: "floor, its lookup in a table of 65,536", unit: "ns"},
	{key: "xdp/flows/flow", title: "known flow to another node, one of 65,536 in turn", unit: "ns"},
	{key: "xdp/flows/flow/floors", title: "known flow to another node, one of 65,536 in turn", unit: "of those floors", bound: atMost, bar: 1.4},
}

// xdpTableQuantities are measured for each family.
func xdpTableQuantities() []quantity {
	var list []quantity
	for _, p := range tablePackets {
		list = append(list, quantity{
			key: p.key(), title: p.title + ", against tables of two Services", unit: "times", bound: atMost, bar: 1.1,
		})
	}
	return list
}

// nodePortQuantities are measured for each place of a backend.
func nodePortQuantities() []quantity {
	var list []quantity
	for _, b := range backends {
		add := func(q quantity) {
			q.section = "NodePort, " + b.title
			list = append(list, q)
		}
		for _, name := range nodeProxies {
			add(quantity{key: b.key("rate", name), title: "new TCP connections, " + proxyTitle(name), unit: "1/s"})
			add(quantity{key: b.key("latency", name), title: "connect(), median, " + proxyTitle(name), unit: "us"})
			add(quantity{key: b.key("latency", name), title: "connect(), 99th percentile, " + proxyTitle(name), unit: "us", p99: true})
		}
		add(quantity{
			key: b.key("rate", "against"), title: "new TCP connections, against the faster mode of kube-proxy",
			unit: "times", bound: atLeast, bar: 1,
		})
		add(quantity{
			key: b.key("p99", "against"), title: "99th percentile, against the lower one of kube-proxy",
			unit: "times", bound: atMost, bar: 1,
		})
	}
	return list
}

// forwardingQuantities are measured of whatever forwards datagrams.
func forwardingQuantities() []quantity {
	const section = "64-byte UDP through a NodePort to another machine"
	var list []quantity
	for _, name := range forwarders {
		list = append(list, quantity{
			key: forwardingKey(name), section: section, title: "packets per second of one core, " + proxyTitle(name), unit: "million/s",
		})
	}
	return append(list,
		quantity{key: forwardingKey("against"), section: section, title: "XDP, against the faster mode of kube-proxy", unit: "times", bound: atLeast, bar: 1},
		quantity{key: forwardingKey("against/plain"), section: section, title: "XDP, against plain forwarding", unit: "times", bound: atLeast, bar: 1})
}

func proxyTitle(name string) string {
	switch name {
	case beeline:
		return "Beeline"
	case beelineXDP:
		return "Beeline with XDP"
	case plain:
		return "plain forwarding by the kernel"
	}
	return "kube-proxy " + name
}

// quantities lists what is measured, in the order in which it is shown.
func quantities() []quantity {
	var list []quantity
	for _, family := range model.Families {
		for _, q := range socketQuantities {
			q.key = of(q.key, family)
			q.section = family.String()
			list = append(list, q)
		}
	}
	for _, family := range model.Families {
		for _, q := range slowQuantities() {
			q.key = of(q.key, family)
			q.section = fmt.Sprintf("A slow endpoint, %s", family)
			list = append(list, q)
		}
	}
	for _, family := range model.Families {
		for _, q := range packetQuantities {
			q.key = of(q.key, family)
			q.section = fmt.Sprintf("Packets, %s", family)
			list = append(list, q)
		}
	}
	for _, family := range model.Families {
		for _, q := range xdpQuantities() {
			q.key = of(q.key, family)
			q.section = fmt.Sprintf("XDP, %s", family)
			list = append(list, q)
		}
	}
	for _, family := range model.Families {
		for _, q := range xdpFlowQuantities {
			q.key = of(q.key, family)
			q.section = fmt.Sprintf("XDP, many flows, %s", family)
			list = append(list, q)
		}
	}
	for _, family := range model.Families {
		for _, q := range xdpTableQuantities() {
			q.key = of(q.key, family)
			q.section = fmt.Sprintf("XDP, 50,000 Services and 500,000 slots, %s", family)
			list = append(list, q)
		}
	}
	list = append(list, quantity{
		key: "packets/memory", section: "Packet flows", title: "kernel memory of bl_flow for a flow, both directions", unit: "bytes", bound: atMost, bar: 300,
	})
	list = append(list, nodePortQuantities()...)
	list = append(list, forwardingQuantities()...)
	list = append(list, quantity{
		key: "memory/maps", section: "Empty tables", title: "kernel memory of all maps", unit: "MiB", bound: atMost, bar: 32,
	})
	for _, l := range sizes {
		for _, q := range sizeQuantities {
			q.key = l.sizeKey(q.key)
			q.section = fmt.Sprintf("Memory, %d Services x %d endpoints", l.services, l.endpoints)
			list = append(list, q)
		}
	}
	for _, pods := range idlePods {
		list = append(list, quantity{
			key: idleKey(pods), section: "Idle agent", title: fmt.Sprintf("CPU time, %d devices of pods served", pods), unit: "ms/s", bound: atMost, bar: 10,
		})
	}
	for _, l := range shapes {
		for _, q := range controlQuantities {
			q.key = l.key(q.key)
			q.section = fmt.Sprintf("%d Services x %d endpoints", l.services, l.endpoints)
			if l.ring != 0 {
				q.section += fmt.Sprintf(", Maglev rings of %d slots", l.ring)
				q.bound, q.bar = ringBar(q)
			}
			list = append(list, q)
		}
	}
	return append(list, quantity{
		key: growth, section: "Growth", title: "CPU time for a change, 10,000 Services against 100", unit: "times", bound: atMost, bar: 1.5,
	})
}

// ringBar returns what is asked of a quantity of the control plane when there are
// rings to be made. The slots count to the agent's memory, as far as it has written them.
func ringBar(q quantity) (bound, float64) {
	switch {
	case strings.HasSuffix(q.key, "/list"):
		return atMost, 2
	case strings.HasSuffix(q.key, "/change") && q.p99:
		return atMost, 5
	}
	return none, 0
}

// controlQuantities are measured for each shape.
var controlQuantities = []quantity{
	{key: "start", title: "start of the agent until all is in the kernel", unit: "s"},
	{key: "list", title: "arrival of the list until all is in the kernel", unit: "s", bound: atMost, bar: 1},
	{key: "rss", title: "agent's resident memory", unit: "MiB", bound: atMost, bar: 200},
	{key: "rss/peak", title: "agent's peak resident memory", unit: "MiB", bound: atMost, bar: 200},
	{key: "change", title: "arrival of a change until connect() sees it, median", unit: "ms"},
	{key: "change", title: "arrival of a change until connect() sees it, 99th percentile", unit: "ms", bound: atMost, bar: 2, p99: true},
	{key: "change/answer", title: "API server's answer until connect() sees it, median", unit: "ms"},
	{key: "change/answer", title: "API server's answer until connect() sees it, 99th percentile", unit: "ms", p99: true},
	{key: "change/resolution", title: "time between two looks at connect(), 99th percentile", unit: "ms", p99: true},
	{key: "change/cpu", title: "agent's CPU time for a change", unit: "us"},
}

// growth is the key of what compares two shapes.
const growth = "control/growth"

// derive adds what follows from several figures.
func (r results) derive() {
	for _, b := range backends {
		r.deriveTail(b)
	}
}

// deriveTail compares 99th percentiles, run by run.
func (r results) deriveTail(b backend) {
	for run, ours := range r[b.key("latency", beeline)] {
		best := math.Inf(1)
		for _, name := range nodeProxies {
			if name != beeline {
				best = min(best, quantile(r[b.key("latency", name)][run], 0.99))
			}
		}
		r.add(samples{b.key("p99", "against"): {quantile(ours, 0.99) / best}})
	}
}
