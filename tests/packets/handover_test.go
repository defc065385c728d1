package packets_test

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/tests/apiserver"
	"github.com/beeline-lb/beeline/tests/lab"
)

// publicServices are the Services of the API server: one with a backend on this
// node, one with a backend on the other, and one with a host's process there.
func publicServices() []string {
	const dual = "ipFamilyPolicy: RequireDualStack,"
	c := &cluster{nodes: [2]*node{{index: 1}, {index: 2}}}
	var all []string
	for i, at := range []endpoint{{node: 1, place: "routed"}, {node: 2, place: "routed"}, {node: 2, place: "host"}} {
		all = append(all, c.service(i+1, fmt.Sprintf("public-%d", i+1), dual, []endpoint{at})...)
	}
	return all
}

// longest is how long a connection may be silent while a node changes hands. It
// leaves room for a packet that has to be sent again, on a busy machine.
const longest = 2 * time.Second

// talk is a TCP connection on which a count goes there and back all the time.
type talk struct {
	name   string
	socket *lab.Socket
	stop   chan struct{}
	done   sync.WaitGroup

	mu      sync.Mutex
	count   int
	slowest time.Duration
	err     error
}

// start connects and begins to count.
func startTalk(t *testing.T, n *lab.Namespace, name, network string, to netip.AddrPort) *talk {
	t.Helper()
	k := &talk{name: fmt.Sprintf("%s to %s", name, to), socket: n.Socket(network), stop: make(chan struct{})}
	if err := k.socket.Connect(to); err != nil {
		t.Fatalf("%s: %v", k.name, err)
	}
	if _, _, err := k.socket.Receive(); err != nil {
		t.Fatalf("%s: %v", k.name, err)
	}
	k.done.Go(k.run)
	t.Cleanup(k.end)
	return k
}

func (k *talk) run() {
	for {
		select {
		case <-k.stop:
			return
		case <-time.After(10 * time.Millisecond):
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

// openTalks makes a connection for each way to each Service.
func openTalks(t *testing.T, c *cluster) talks {
	t.Helper()
	var all talks
	for _, network := range networks[:2] {
		for i := 1; i <= 3; i++ {
			cluster := netip.AddrPortFrom(clusterIP(i).of(network), 80)
			all = append(all,
				startTalk(t, c.nodes[0].Namespace, "the node", network, cluster),
				startTalk(t, c.nodes[0].bridged, "a pod", network, cluster),
				startTalk(t, c.client, "the client", network, nodePort(network, i)),
				startTalk(t, c.client, "the client", network, netip.AddrPortFrom(externalIP(i).of(network), 80)))
		}
	}
	return all
}

// goOn checks that every connection has come further twice since the last step.
func (all talks) goOn(t *testing.T, when string) {
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
					t.Fatalf("%s: %s: after %d answers, the slowest after %s: %v", when, k.name, count, slowest, err)
				}
				if count > before[k] {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("%s: %s: no answer for %s", when, k.name, longest)
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

// besideKubeProxy are ports other than kube-proxy's.
var besideKubeProxy = []string{"--metrics-bind-address=127.0.0.1:19249", "--healthz-bind-address=127.0.0.1:19256"}

// testHandover: connections live on while a node goes from kube-proxy to Beeline,
// and new ones are served.
func testHandover(t *testing.T, server *apiserver.Server, m proxyMode) {
	c := newCluster(t, false)
	c.serveAll(t)
	node := c.nodes[0]
	forgetSoon(node.Namespace)
	proxy := newKubeProxy(t, server, node.Namespace, m)
	proxy.start()
	old := openTalks(t, c)
	old.goOn(t, "with kube-proxy")

	startAgent(t, node, publicServices(), besideKubeProxy...)
	old.goOn(t, "with both")
	between := openTalks(t, c)
	proxy.stop()
	if out := cleanupByAgent(t, node.Namespace); !strings.Contains(out, "kept table beeline-handover: ") {
		t.Errorf("the cleanup says %q", out)
	}
	old.goOn(t, "after the cleanup")
	between.goOn(t, "after the cleanup")
	new := openTalks(t, c)
	new.goOn(t, "with Beeline")
	old.goOn(t, "with Beeline")

	old.end()
	lab.Eventually(t, "nothing of kube-proxy is left", func() bool {
		tables, err := node.Output("nft", "list", "tables")
		return err == nil && !strings.Contains(tables+cleanupByAgent(t, node.Namespace), "beeline-handover")
	})
	between.goOn(t, "after all")
	new.goOn(t, "after all")
}

// forgetSoon makes connection tracking forget a connection a second after its end.
func forgetSoon(n *lab.Namespace) {
	for _, state := range []string{"fin_wait", "close_wait", "last_ack", "time_wait", "close"} {
		n.SetSysctl("netfilter/nf_conntrack_tcp_timeout_"+state, "1")
	}
}
