package packets_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/tests/lab"
)

// TestWaitUntilDrained: who asks the agent of an endpoint that terminates is answered when its last
// connection has gone, by a NodePort or straight from another pod, of IPv4 or IPv6.
func TestWaitUntilDrained(t *testing.T) {
	t.Parallel()
	web := func(c *cluster, endpoints ...endpoint) []string { return c.service(1, "web", "", endpoints) }
	c, a := serveCluster(t, func(c *cluster) []string { return web(c, local) }, "--service-metrics-limit", "1", "--service-metrics-backends", "1")
	c.podOf(local).Populate() // else the agent does not see its network namespace
	at := func(network string) netip.AddrPort {
		return netip.AddrPortFrom(c.addrsOf(local).of(network), backendPort)
	}
	var open []*lab.Socket
	for _, network := range networks[:2] {
		s, _ := connect(t, c.client, network, nodePort(network, 1))
		open = append(open, s)
		s, _ = connect(t, c.podOf(otherLocal), network, at(network))
		open = append(open, s)
	}
	leaving := local
	leaving.terminating = true
	a.apply(web(c, leaving, otherLocal)...)
	idle := otherLocal
	idle.terminating = true
	a.apply(append(web(c, leaving, otherLocal), c.service(2, "idle", "", []endpoint{idle})...)...)

	const pages = "http://127.0.0.1:10256/wait-until-drained/default/"
	const url = pages + "web"
	node := c.nodes[0]
	counted := func(n4, n6 int) {
		t.Helper()
		want := fmt.Sprintf(`{"endpoint":%q,"connections":%d},{"endpoint":%q,"connections":%d}`,
			at("tcp4"), n4, at("tcp6"), n6)
		lab.Eventually(t, "the agent counts "+want, func() bool {
			body, err := node.Get(url + "?timeout=0s")
			return err != nil && strings.HasSuffix(err.Error(), ": 504 Gateway Timeout") && strings.Contains(body, want)
		})
	}
	counted(2, 2)
	lab.Eventually(t, "the metrics have the 4 connections, and one endpoint of all", func() bool {
		page, err := node.Get("http://127.0.0.1:10249/metrics")
		return err == nil && strings.Contains(page, "\nbeeline_terminating_connections 4\n") &&
			strings.Count(page, "\nbeeline_terminating_endpoint_connections{") == 1
	})
	drained := make(chan string, 1)
	go func() {
		body, err := node.Get(url)
		if err != nil {
			t.Error(err)
		}
		drained <- body
	}()
	open[3].Close()
	counted(2, 1)
	open[0].Close()
	counted(1, 1)
	open[1].Close()
	counted(0, 1)
	if _, err := node.Get(pages + "idle"); err != nil { // which terminates later
		t.Error(err)
	}
	open[2].Close()
	// An earlier answer would have a connection.
	want := fmt.Sprintf(`{"endpoints":[{"endpoint":%q,"connections":0},{"endpoint":%q,"connections":0}]}`, at("tcp4"), at("tcp6"))
	if got := <-drained; strings.TrimSpace(got) != want {
		t.Errorf("the answer is %s, want %s", got, want)
	}
}
