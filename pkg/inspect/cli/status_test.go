package cli

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/inspect"
)

var statusNow = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func testStatus() *inspect.Status {
	return &inspect.Status{
		Directory: "/sys/fs/bpf/beeline/v1", Schema: 1,
		Flows: inspect.Flows{
			Room: 131072, SizedBy: "the machine's 16Gi of memory",
			EvictedEstablished: 7, EvictedHalfOpen: 20, LastEvicted: statusNow.Add(-time.Minute),
			EvictedRecently: &inspect.EvictedRecently{From: statusNow.Add(-62 * time.Second), To: statusNow.Add(-2 * time.Second), Established: 3, HalfOpen: 18},
		},
		Agent: inspect.Agent{
			Running: true, PID: 4242, Version: "v0.1.0", Node: "node-a", Source: "https://192.0.2.1:6443",
			Cgroup: "/sys/fs/cgroup", Started: statusNow.Add(-3 * time.Hour), LastSync: statusNow.Add(-5 * time.Second),
			Syncs: 1532, Pending: 1,
		},
		Served: inspect.Served{Services: 6, Ports: 13, Frontends: 23, Backends: 10, Limited: 2},
		Tunnel: inspect.Tunnel{Port: 6091, Nodes: 5, Asked: 4, Used: 1},
		NAT:    inspect.NAT{Left: 3, Served: 1},
		Programs: []inspect.Program{
			{Name: "bl_connect4", Attach: "CGroupInet4Connect", ProgramID: 34, Tag: "9f2c4b1d0a77e3c1", LinkID: 12, CgroupID: 4067},
			{Name: "bl_getpeername6", Attach: "CGroupInet6GetPeername", ProgramID: 135, Tag: "0a77e3c19f2c4b1d", LinkID: 13},
		},
		Devices: []inspect.Device{
			{Name: "eth0", Ifindex: 2, Reason: "default route", Attach: "tcx", ID: 1, XDP: "native", XDPBeside: []string{"xdpfilt_dny_udp"},
				Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")}},
			{Name: "flannel.1", Ifindex: 40, Reason: "overlay (vxlan)", ID: 2, XDP: "off", NoXDP: "its driver (vxlan) has no native XDP"},
		},
		Sandboxes: 2,
		Maps: []inspect.Map{
			{Name: "bl_agent", MemoryBytes: 4096},
			{Name: "bl_frontend", Used: 23, Size: 262144, Setting: "--max-frontends", MemoryBytes: 3 << 20},
			{Name: "bl_node_addr", Used: 2048, Size: 4096, MemoryBytes: 600 << 10},
		},
		Counters: []inspect.Counter{
			{Reason: "no_endpoint", Count: 17, Effect: "refused"},
			{Reason: "sock_not_stored", Effect: "served"},
		},
		Refusals: []inspect.Refusal{{PortName: inspect.PortName{Namespace: "default", Service: "web", PortName: "http", Port: 80, Protocol: "TCP", Family: "IPv4"}, Count: 17}},
		NodeAddresses: []inspect.NodeAddress{
			{Address: netip.MustParseAddr("127.0.0.1"), HostOnly: true}, {Address: netip.MustParseAddr("192.0.2.10")},
		},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
	}
}

const statusTable = `Agent       running, pid 4242, started 2026-03-01T09:00:00Z (3h ago)
Version     v0.1.0
Node        node-a
Source      https://192.0.2.1:6443
Cgroup      /sys/fs/cgroup
Last sync   2026-03-01T11:59:55Z (5s ago), 1532 since the start, 1 service pending
Serving     6 services (13 ports), 23 frontends, 10 backends; 2 services with less than asked for, see beeline_service_invalid_settings
Flows       room for 131072 connections, by the machine's 16Gi of memory; 20 half-open ones evicted (0.3 a second in the last 60s); 7 ESTABLISHED ONES EVICTED (0.1 a second in the last 60s), the last seen 2026-03-01T11:59:00Z (60s ago): raise --max-flows
Tunnel      UDP port 6091, to 1 of 4 nodes that have endpoints for it
Sockets     left alone in 3 network namespaces with rules of nat OUTPUT, whose packets are served; SERVED LIKE OTHERS in 1 network namespace with such rules, whose devices cannot be: the agent's log names them
Sandboxes   packets of pods whose sockets the kernel does not see are served at 2 devices

PROGRAM           ATTACHED-TO                                    PROGRAM-ID   TAG
bl_connect4       CGroupInet4Connect                             34           9f2c4b1d0a77e3c1
bl_getpeername6   CGroupInet6GetPeername (of a removed cgroup)   135          0a77e3c19f2c4b1d

DEVICE      ATTACHED-BY    XDP                                         SOURCE                    REASON
eth0        tcx            native, beside xdpfilt_dny_udp              192.0.2.10,2001:db8::10   default route
flannel.1   NOT ATTACHED   off: its driver (vxlan) has no native XDP   -                         overlay (vxlan)

MAP            USED   SIZE     FILL    MEMORY      SETTING
bl_frontend    23     262144   0.0%    3.0 MiB     --max-frontends
bl_node_addr   2048   4096     50.0%   600.0 KiB   -
all maps       -      -        -       3.6 MiB     -

REASON            COUNT   EFFECT
no_endpoint       17      refused
sock_not_stored   0       served
`

// TestStatusText shows everything that a look at a node starts with.
func TestStatusText(t *testing.T) {
	if got := statusText(testStatus(), statusNow, false); got != statusTable {
		t.Errorf("table is:\n%s", got)
	}
	got := statusText(testStatus(), statusNow, true)
	for _, part := range []string{
		"Pinned in   /sys/fs/bpf/beeline/v1 (schema 1)\n",
		"IFINDEX   ID\n", "LINK-ID   CGROUP-ID\n", "12        4067\n",
		"bl_agent       -      -        -       4.0 KiB     -\n",
		"SERVICE            PORT     FAMILY   REFUSED\ndefault/web:http   80/TCP   IPv4     17\n",
		"NodePorts on     127.0.0.1 (host only), 192.0.2.10\nService ranges   10.96.0.0/16\n",
	} {
		if !strings.Contains(got, part) {
			t.Errorf("wide misses %q:\n%s", part, got)
		}
	}
}

// TestFaultText: a device that is not served is named with the reason and the next try, which
// needs an agent.
func TestFaultText(t *testing.T) {
	s := testStatus()
	if got := faultText(s, statusNow); got != "" {
		t.Errorf("without faults: %q", got)
	}
	s.DeviceFaults = []inspect.DeviceFault{{
		Name: "odd0", Ifindex: 7, Role: "clients", Error: "no room", Tries: 3,
		Since: statusNow.Add(-time.Minute), NextTry: statusNow.Add(8 * time.Second),
	}}
	for _, running := range []bool{true, false} {
		s.Agent.Running = running
		want := []string{"DEVICE NOT SERVED", "odd0", "clients", "(60s ago)", "in 8s", "no room"}
		if !running {
			want[4] = "when an agent runs"
		}
		got := statusText(s, statusNow, false)
		for _, part := range want {
			if !strings.Contains(got, part) {
				t.Errorf("misses %q:\n%s", part, got)
			}
		}
	}
}

// TestAgentState never takes an agent that is down for one that is not.
func TestAgentState(t *testing.T) {
	started := statusNow.Add(-90 * time.Second)
	for _, c := range []struct {
		agent inspect.Agent
		want  string
	}{
		{inspect.Agent{}, "down, and none has run yet"},
		{inspect.Agent{Running: true}, "running"},
		{inspect.Agent{Running: true, PID: 7}, "running, pid 7"},
		{inspect.Agent{PID: 7, Started: started},
			"DOWN, traffic is served from its last state; last was pid 7, started 2026-03-01T11:58:30Z (90s ago)"},
	} {
		if got := agentState(c.agent, statusNow); got != c.want {
			t.Errorf("%+v: %q, want %q", c.agent, got, c.want)
		}
	}
}

// TestKeepsSockets says what the kernel cannot do.
func TestKeepsSockets(t *testing.T) {
	s := testStatus()
	s.Agent.KeepsSockets = true
	if got := statusText(s, statusNow, false); !strings.Contains(got, "\nUDP sockets   stay connected to endpoints that are gone: the kernel cannot destroy them") {
		t.Errorf("table is:\n%s", got)
	}
}

// TestNoPrograms says what it means that nothing is attached.
func TestNoPrograms(t *testing.T) {
	s := testStatus()
	s.Programs = nil
	if got := statusText(s, statusNow, false); !strings.Contains(got, "No program is attached") {
		t.Errorf("table is:\n%s", got)
	}
}

// TestNoDevices says what it means that no device is attached to.
func TestNoDevices(t *testing.T) {
	s := testStatus()
	s.Devices = nil
	if got := statusText(s, statusNow, false); !strings.Contains(got, "only processes of this node are served") {
		t.Errorf("table is:\n%s", got)
	}
}
