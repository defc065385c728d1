package cli_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/inspect/cli"
	"github.com/beeline-lb/beeline/pkg/model"
)

// flow is one as the programs store it.
type flow struct {
	protocol                 model.Protocol
	client, service, backend string
	source                   string // "" is the client
	state                    uint8
	backendID                uint32
	tunnel                   string // "out" to node 4, "in", or ""
}

// gone is the backend's id in a forward entry that a reply made.
const gone = ^uint32(0)

// flows are local and remote, of both families, one of an unknown Service port and
// one that was made again; and one in each direction of the tunnel.
var flows = []flow{
	{model.TCP, "203.0.113.7:40000", "203.0.113.5:80", "10.0.1.2:8080", "", 2, 1, ""},
	{model.TCP, "198.51.100.9:51000", "192.0.2.10:30080", "10.0.2.1:8080", "192.0.2.10:51000", 3, 2, ""},
	{model.TCP, "198.51.100.9:51001", "192.0.2.10:30080", "10.0.3.1:8080", "192.0.2.10:61234", 2, gone, ""},
	{model.TCP, "[2001:db8::9]:40000", "[fd00:96::20]:80", "[fd00:1::1]:8080", "", 0, 4, ""},
	{model.UDP, "198.51.100.9:51000", "10.96.0.10:53", "10.0.2.5:53", "192.0.2.10:51000", 0, 6, ""},
	{model.UDP, "198.51.100.9:5353", "10.99.0.1:53", "10.0.9.9:53", "198.51.100.9:62000", 2, gone, ""},
	{model.TCP, "198.18.0.1:40000", "203.0.113.5:80", "10.0.2.1:8080", "", 2, 2, "out"},
	{model.TCP, "198.18.0.2:40000", "203.0.113.5:80", "10.0.1.2:8080", "198.18.0.2:11768", 2, gone, "in"},
}

// put writes the forward and the reply entry of a flow that is idle for 20 s.
func (f flow) put(t *testing.T, dir string, now uint32) {
	t.Helper()
	type key struct {
		Src, Dst         [16]byte
		SrcPort, DstPort [2]byte
		Protocol         uint8
		_                [3]uint8
	}
	type forward struct {
		Backend          [16]byte
		BackendID, Used  uint32
		Progress         [2]uint32
		Port, SourcePort [2]byte
		Generation       uint16
		Device, Bits     uint8
	}
	type reply struct {
		Addr, Client    [16]byte
		Port, OtherPort [2]byte
		Touched         uint16
		Device, Bits    uint8
	}
	const isReply, snat, tunnel = 1 << 3, 1 << 4, 1 << 5
	client, service, backend := netip.MustParseAddrPort(f.client), netip.MustParseAddrPort(f.service), netip.MustParseAddrPort(f.backend)
	source, device, bits := client, uint8(0), f.state
	if f.source != "" {
		source = netip.MustParseAddrPort(f.source)
	}
	if source.Addr() != client.Addr() {
		device, bits = 1, bits|snat
	}
	other := port(source)
	if f.tunnel != "" {
		bits |= tunnel
	}
	if f.tunnel == "out" {
		device = 1
		binary.NativeEndian.PutUint16(other[:], 4)
	}
	m := openMap(t, dir, "bl_flow")
	check(t, m.Put(
		key{client.Addr().As16(), service.Addr().As16(), port(client), port(service), uint8(f.protocol), [3]uint8{}},
		forward{backend.Addr().As16(), f.backendID, now - 20, [2]uint32{}, port(backend), other, 1, device, bits}))
	if f.tunnel == "out" {
		return
	}
	check(t, m.Put(
		key{backend.Addr().As16(), source.Addr().As16(), port(backend), port(source), uint8(f.protocol), [3]uint8{}},
		reply{service.Addr().As16(), client.Addr().As16(), port(service), port(client), uint16(now - 20), 1, bits&(snat|tunnel) | isReply}))
}

// port returns the bytes of a port as they are in a packet.
func port(a netip.AddrPort) [2]byte { return [2]byte{byte(a.Port() >> 8), byte(a.Port())} }

func fillFlows(t *testing.T, maps *bpfmap.Maps, dir string) {
	t.Helper()
	check(t, devicemap.New(maps).Put(devicemap.Device{ID: 1, Name: "uplink0", Ifindex: 7, Addr4: netip.MustParseAddr("192.0.2.10")}))
	var ts unix.Timespec
	check(t, unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &ts))
	for _, f := range flows {
		f.put(t, dir, uint32(ts.Sec))
	}
}

// TestFlowFilters finds the same flows by each of what they have.
func TestFlowFilters(t *testing.T) {
	bpffs := newDatapath(t)
	for _, c := range []struct {
		args string
		want int
	}{
		{"", 8},
		{"--client 198.51.100.9", 4},
		{"--client 198.51.100.9:51000", 2},
		{"--client 198.51.100.8/30", 4},
		{"--client 2001:db8::/32", 1},
		{"--client [2001:db8::9]:40000", 1},
		{"--client 0.0.0.0/0", 7},
		{"--backend 10.0.2.1", 2},
		{"--backend 10.0.2.1:8081", 0},
		{"--backend 10.0.0.0/16 --protocol udp", 2},
		{"--service shop/web", 6},
		{"--service kube-system/dns", 1},
		{"--service web -n shop", 6},
		{"-n shop", 6},
		{"--service shop/nothing", 0},
		{"--protocol TCP", 6},
		{"--protocol SCTP", 0},
		{"--state established", 5},
		{"--state client-closing --service shop/web", 1},
	} {
		out, errs, code := run(append(strings.Fields("flow list --bpffs "+bpffs), strings.Fields(c.args)...)...)
		if got := strings.Count(out, "\n") - 1; code != cli.ExitOK || got != c.want {
			t.Errorf("flow list %s: %d flows, want %d; exit code %d, said %q", c.args, got, c.want, code, errs)
		}
	}
}

// TestFlowLimit: with a limit the first of all are listed, and how many are left out is said.
func TestFlowLimit(t *testing.T) {
	bpffs := newDatapath(t)
	lines := func(limit int) []string {
		out, errs, code := run("flow", "list", "--bpffs", bpffs, "--limit", fmt.Sprint(limit))
		says := ""
		if left := len(flows) - limit; limit > 0 && left > 0 {
			says = fmt.Sprintf("left out: %s of %d", inspect.Amount(left, "connection"), len(flows))
		}
		if code != cli.ExitOK || !strings.Contains(errs, says) || says == "" && errs != "" {
			t.Errorf("--limit %d: exit code %d, said %q, want %q", limit, code, errs, says)
		}
		list := strings.Split(strings.TrimSpace(out), "\n")[1:]
		for i := range list {
			fields := strings.Fields(list[i])                                                // columns are as wide as what is in them
			list[i] = strings.Join(slices.Delete(fields, len(fields)-2, len(fields)-1), " ") // time goes on
		}
		return list
	}
	all := lines(0)
	for limit := 1; limit <= len(flows)+1; limit++ {
		if got, want := lines(limit), all[:min(limit, len(all))]; !slices.Equal(got, want) {
			t.Errorf("--limit %d lists %q\nwant %q", limit, got, want)
		}
	}
}

// TestFlowDelete removes both entries of what is meant, and nothing else.
func TestFlowDelete(t *testing.T) {
	bpffs := newDatapath(t)
	for _, c := range []struct {
		args string
		says string
		left uint32 // entries
	}{
		{"--service shop/nothing", "deleted 0 flows\n", 15},
		{"--protocol UDP --client 198.51.100.9:51000", "deleted 1 flow\n", 13},
		{"--service shop/web --state established -o json", "{\n  \"deleted\": 4\n}\n", 6},
		{"--all", "deleted 3 flows\n", 0},
		{"--all", "deleted 0 flows\n", 0},
	} {
		out, errs, code := run(append(strings.Fields("fl delete --bpffs "+bpffs), strings.Fields(c.args)...)...)
		if code != cli.ExitOK || out != c.says {
			t.Errorf("flow delete %s: exit code %d, output %q, said %q", c.args, code, out, errs)
		}
		for _, m := range status(t, bpffs).Maps {
			if m.Name == "bl_flow" && m.Used != c.left {
				t.Errorf("flow delete %s: %d entries are left, want %d", c.args, m.Used, c.left)
			}
		}
	}
}

// TestFlowInTwoTables: a flow that is in a former flow table, too, is listed, counted and deleted once.
func TestFlowInTwoTables(t *testing.T) {
	bpffs := newDatapath(t)
	dir := datapath.Dir(bpffs)
	sizes := bpfmap.DefaultSizes
	sizes.Affinity, sizes.UDPPeers, sizes.Flows, sizes.Clients = 1024, 1024, 2048, 1024
	maps, err := bpfmap.Load(dir, sizes)
	check(t, err)
	defer maps.Close()
	check(t, maps.Pin(dir))
	flowsNow := func(of string) (listed, top int) {
		out, errs, code := run("flow", "list", "--bpffs", bpffs)
		if code != cli.ExitOK {
			t.Errorf("%s: exit code %d, said %q", of, code, errs)
		}
		for _, s := range sample(t, bpffs).Since(nil).Services {
			top += s.Flows
		}
		return strings.Count(out, "\n") - 1, top
	}
	listed, top := flowsNow("in the former table")
	fillFlows(t, maps, dir)
	if listed2, top2 := flowsNow("in two tables"); listed != len(flows) || listed2 != listed || top2 != top {
		t.Errorf("%d are listed and %d counted, of those in the former table alone %d and %d", listed2, top2, listed, top)
	}
	out, _, _ := run("flow", "delete", "--bpffs", bpffs, "--all")
	if listed, top := flowsNow("deleted"); out != "deleted 8 flows\n" || listed+top > 0 {
		t.Errorf("%q, %d are listed and %d counted", out, listed, top)
	}
}

// TestFlowNode shows the node at the end of the tunnel by its name, else by its address.
func TestFlowNode(t *testing.T) {
	bpffs := newDatapath(t)
	dir := datapath.Dir(bpffs)
	show := func(want string) {
		t.Helper()
		out, errs, code := run("flow", "show", "198.18.0.1:40000", "--bpffs", bpffs)
		if code != cli.ExitOK || !strings.Contains(out, "in the tunnel to "+want+"\n") {
			t.Errorf("the flow to %s is %q, exit code %d, said %q", want, out, code, errs)
		}
	}
	show("node node-d")
	check(t, openMap(t, dir, "bl_node_name").Delete(uint32(4)))
	show("node 192.0.2.13")
	check(t, openMap(t, dir, "bl_node").Put(uint32(4), make([]byte, 24)))
	show("a node that is gone")
}
