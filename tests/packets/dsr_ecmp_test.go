package packets_test

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/tests/tier"
	"github.com/beeline-lb/beeline/tests/wait"
)

// ecmp makes the router balance packets to Services between nodes by ECMP, with ports in the hash.
func (c *cluster) ecmp(t *testing.T, among ...int) {
	t.Helper()
	for family, version := range []string{"-4", "-6"} {
		c.router.SetSysctl([]string{"ipv4", "ipv6"}[family]+"/fib_multipath_hash_policy", "1")
		args := []string{version, "route", "replace", serviceRanges[family]}
		for _, i := range among {
			args = append(args, "nexthop", "via", nodeAddrs(i)[family].String(), "dev", "nodes")
		}
		if out, err := c.router.Output("ip", args...); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
}

// transferRounds is how often a transfer of [transfers] goes there and back.
const transferRounds = 20

// transfers runs many transfers over connections of their own at once. halfway is called
// when all are in their middle. It returns what has ended the transfers that broke.
func (c *cluster) transfers(t *testing.T, number int, patience time.Duration, halfway func()) (broken []error) {
	t.Helper()
	var mu sync.Mutex
	var running, middle sync.WaitGroup
	middle.Add(number)
	goOn := make(chan struct{})
	for i := range number {
		network := networks[i%2]
		var conn net.Conn
		err := c.client.Run(func() (err error) {
			conn, err = net.DialTimeout(network, netip.AddrPortFrom(clusterIP(1).of(network), 80).String(), wait.Limit)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		running.Go(func() {
			if err := ping(conn, fmt.Sprintf("transfer %d ", i), patience, &middle, goOn); err != nil {
				mu.Lock()
				defer mu.Unlock()
				broken = append(broken, fmt.Errorf("transfer %d from %s: %w", i, conn.LocalAddr(), err))
			}
		})
	}
	middle.Wait()
	halfway()
	close(goOn)
	running.Wait()
	return broken
}

// ping reads the greeting and sends a text there and back. In the middle it waits for the
// others, and may then take so long.
func ping(conn net.Conn, name string, patience time.Duration, middle *sync.WaitGroup, goOn <-chan struct{}) error {
	reached := sync.OnceFunc(middle.Done)
	defer reached()
	if err := conn.SetDeadline(time.Now().Add(wait.Limit)); err != nil {
		return err
	}
	if _, err := conn.Read(make([]byte, 256)); err != nil {
		return fmt.Errorf("no greeting: %w", err)
	}
	for round := range transferRounds {
		if round == transferRounds/2 {
			reached()
			<-goOn
			if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
				return err
			}
		}
		text := strings.Repeat(fmt.Sprint(name, round, "\n"), 200)
		if _, err := io.WriteString(conn, text); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		back := make([]byte, len(text))
		if _, err := io.ReadFull(conn, back); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		if string(back) != text {
			return fmt.Errorf("round %d: something else came back", round)
		}
	}
	return nil
}

// TestDSRNodeDies: one of two nodes behind ECMP fails during many transfers. With Maglev the other
// continues all of them; with another algorithm it has no flows for those of the failed node.
func TestDSRNodeDies(t *testing.T) {
	tier.Slow(t, "needs 1,000 transfers at once")
	for _, tt := range []struct {
		algorithm string
		transfers int
		patience  time.Duration
		breaks    bool
	}{{"maglev", 1000, wait.Limit, false}, {"random", 100, 5 * time.Second, true}} {
		t.Run(tt.algorithm, func(t *testing.T) {
			c := newClusterOf(t, 3, false)
			c.ecmp(t, 1, 2)
			backends := []endpoint{{node: 3, place: "routed"}, {node: 3, place: "bridged"}, {node: 3, place: "host"}}
			c.serveDSR(t, c.service(1, "web", "", backends), "--algorithm", tt.algorithm)
			var before, killed uint64
			broken := c.transfers(t, tt.transfers, tt.patience, func() {
				before, killed = eventCount(t, c.nodes[1], "tunnel_sent"), eventCount(t, c.nodes[0], "tunnel_sent")
				if out, err := c.router.Output("ip", "link", "set", "node1", "down"); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				c.ecmp(t, 2)
			})
			share := uint64(tt.transfers) * transferRounds / 10
			if after := eventCount(t, c.nodes[1], "tunnel_sent"); before < share || killed < share || after-before < share {
				t.Errorf("node 1 had sent %d packets by the tunnel, node 2 %d and then %d", killed, before, after-before)
			}
			if tt.breaks && len(broken) == 0 {
				t.Error("no transfer broke, so the test tells nothing")
			}
			for i, err := range broken {
				if !tt.breaks && i < 10 {
					t.Error(err)
				}
			}
			if !tt.breaks && len(broken) > 0 {
				t.Errorf("%d of %d transfers broke", len(broken), tt.transfers)
			}
		})
	}
}
