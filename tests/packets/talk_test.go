package packets_test

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/tests/lab"
)

// longest is how long a connection may be silent while a node changes hands: ten times
// what a quiet machine takes to send a few packets again.
const longest = 20 * time.Second

// talk is a TCP connection on which a count goes there and back, many times a second.
type talk struct {
	name   string
	proxy  string // who translates it: "kube-proxy" or "Beeline"
	to     netip.AddrPort
	self   netip.AddrPort // the client's
	seen   netip.AddrPort // the client's as the endpoint sees it
	socket *lab.Socket
	stop   chan struct{}
	done   sync.WaitGroup

	mu      sync.Mutex
	count   int
	slowest time.Duration
	err     error
}

// startTalk connects and begins to count.
func startTalk(t *testing.T, n *lab.Namespace, name, proxy, network string, to netip.AddrPort) *talk {
	t.Helper()
	k := &talk{
		name: fmt.Sprintf("%s to %s by %s", name, to, proxy), proxy: proxy, to: to,
		socket: n.Socket(network), stop: make(chan struct{}),
	}
	if err := k.socket.Connect(to); err != nil {
		t.Fatalf("%s: %v", k.name, err)
	}
	var err error
	if k.self, err = k.socket.Local(); err != nil {
		t.Fatal(err)
	}
	text, _, err := k.socket.Receive()
	if err != nil {
		t.Fatalf("%s: %v", k.name, err)
	}
	hello, err := parseGreeting(text)
	if err != nil {
		t.Fatalf("%s: %v", k.name, err)
	}
	k.seen = hello.client
	k.done.Go(k.run)
	t.Cleanup(k.end)
	return k
}

func (k *talk) run() {
	for {
		select {
		case <-k.stop:
			return
		case <-time.After(50 * time.Millisecond): // there are a hundred of them
		}
		start := time.Now()
		err := echo(k.socket, fmt.Sprintf("count %08d", k.count+1))
		k.mu.Lock()
		k.err = err
		k.count++
		k.slowest = max(k.slowest, time.Since(start))
		k.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// end closes the connection, if it is not yet.
func (k *talk) end() {
	select {
	case <-k.stop:
	default:
		close(k.stop)
	}
	k.done.Wait()
	k.socket.Close()
}

// progress returns how far the count is.
func (k *talk) progress() (count int, slowest time.Duration, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.count, k.slowest, k.err
}

// talks are connections that are to live on.
type talks []*talk

// openTalks makes a connection to each frontend of each Service, which a proxy is expected to
// translate. A firewall lets pods reach pods only.
func openTalks(t *testing.T, c *cluster, proxy string, firewall bool) talks {
	t.Helper()
	var all talks
	for _, network := range networks[:2] {
		for i := 1; i <= 3; i++ {
			cluster := netip.AddrPortFrom(clusterIP(i).of(network), 80)
			all = append(all,
				startTalk(t, c.nodes[0].Namespace, "the node", proxy, network, cluster),
				startTalk(t, c.client, "the client", proxy, network, nodePort(network, i)),
				startTalk(t, c.client, "the client", proxy, network, netip.AddrPortFrom(externalIP(i).of(network), 80)))
			if i < 3 || !firewall {
				all = append(all, startTalk(t, c.nodes[0].bridged, "a pod", proxy, network, cluster))
			}
		}
	}
	return all
}

// goOn checks that every connection has come further twice since the last step.
func (all talks) goOn(t *testing.T, n *node, when string) {
	t.Helper()
	for range 2 {
		before := make(map[*talk]int)
		for _, k := range all {
			before[k], _, _ = k.progress()
		}
		deadline := time.Now().Add(longest)
		for _, k := range all {
			for {
				count, slowest, err := k.progress()
				if err != nil || slowest > longest {
					t.Fatalf("%s: %s: after %d answers, the slowest after %s: %v\n%s", when, k.name, count, slowest, err, k.report(n))
				}
				if count > before[k] {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("%s: %s: no answer for %s\n%s", when, k.name, longest, k.report(n))
				}
				time.Sleep(5 * time.Millisecond)
			}
		}
	}
}

func (all talks) end() {
	for _, k := range all {
		k.end()
	}
}

// translation is a connection as a node's connection tracking has it: whose it is, to
// where, and who the endpoint takes for its client.
type translation struct{ client, to, seen netip.AddrPort }

// tracked returns the connections that a node tracks.
func tracked(n *node) (map[translation]bool, error) {
	text, err := n.Output("cat", "/proc/thread-self/net/nf_conntrack")
	if err != nil {
		return nil, failure(err)
	}
	all := make(map[translation]bool)
	for line := range strings.Lines(text) {
		ends, err := trackedEnds(line)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		if len(ends) == 4 {
			all[translation{client: ends[0], to: ends[1], seen: ends[3]}] = true
		}
	}
	return all, nil
}

// trackedEnds returns source and destination of the client's packets, then of the replies.
func trackedEnds(line string) (ends []netip.AddrPort, err error) {
	var addrs []netip.Addr
	for _, field := range strings.Fields(line) {
		name, value, _ := strings.Cut(field, "=")
		switch name {
		case "src", "dst":
			addr, err := netip.ParseAddr(value)
			if err != nil {
				return nil, err
			}
			addrs = append(addrs, addr)
		case "sport", "dport":
			port, err := strconv.ParseUint(value, 10, 16)
			if err != nil {
				return nil, err
			}
			ends = append(ends, netip.AddrPortFrom(addrs[len(ends)], uint16(port)))
		}
	}
	return ends, nil
}

// checkProxy checks whose the connections are: those of kube-proxy, and none of Beeline's,
// are in the node's connection tracking as from the client to the Service's address. A
// client may have one port for connections to the Service of both, for to its kernel
// Beeline's are connections to the endpoint; but the endpoint knows them by different ones.
func (all talks) checkProxy(t *testing.T, n *node) {
	t.Helper()
	known, err := tracked(n)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range all {
		if got := known[translation{k.self, k.to, k.seen}]; got != (k.proxy == "kube-proxy") {
			t.Errorf("%s: it is kube-proxy's: %t\n%s", k.name, got, k.report(n))
		}
	}
}

// report says what is known of a connection: what its socket has sent and received, what
// the node's connection tracking and Beeline have of the ports that the client and the
// endpoint know it by, what keeps kube-proxy's connections, and what Beeline has counted.
func (k *talk) report(n *node) string {
	var b strings.Builder
	fmt.Fprintf(&b, "from %s, which the endpoint sees as %s\n", k.self, k.seen)
	if info, err := k.socket.TCPInfo(); err != nil {
		fmt.Fprintf(&b, "socket: %v\n", err)
	} else {
		fmt.Fprintf(&b, "socket: state %d, %d segments out, %d in, the last %d ms ago, %d retransmitted, %d not acknowledged\n",
			info.State, info.Segs_out, info.Segs_in, info.Last_data_recv, info.Total_retrans, info.Unacked)
	}
	tracked, err := n.Output("cat", "/proc/thread-self/net/nf_conntrack")
	fmt.Fprintf(&b, "connection tracking: %v\n", err)
	for line := range strings.Lines(tracked) {
		if strings.Contains(line, fmt.Sprintf("port=%d ", k.self.Port())) || strings.Contains(line, fmt.Sprintf("port=%d ", k.seen.Port())) {
			b.WriteString("\t" + line)
		}
	}
	for _, family := range []string{"ip", "ip6"} {
		table, err := n.Output("nft", "list", "table", family, "beeline-handover")
		fmt.Fprintf(&b, "table %s beeline-handover: %d bytes, %v\n", family, len(table), err)
	}
	k.reportBeeline(n, &b)
	return b.String()
}

func (k *talk) reportBeeline(n *node, b *strings.Builder) {
	d, err := inspect.Open(n.BPFFS)
	if err != nil {
		fmt.Fprintf(b, "Beeline: %v\n", err)
		return
	}
	defer d.Close()
	flows, err := d.Flows(inspect.FlowFilter{}, 0)
	fmt.Fprintf(b, "Beeline's flows: %v\n", err)
	for _, f := range flows.Flows {
		if f.Client.Port() == k.self.Port() || f.Source.Port() == k.seen.Port() {
			fmt.Fprintf(b, "\t%+v\n", f)
		}
	}
	status, err := d.Status()
	if err != nil {
		fmt.Fprintf(b, "Beeline's counters: %v\n", err)
		return
	}
	b.WriteString("Beeline's counters:")
	for _, c := range status.Counters {
		if c.Count > 0 {
			fmt.Fprintf(b, " %s %d", c.Reason, c.Count)
		}
	}
}
