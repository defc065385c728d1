package packets_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// TestCurl fetches a page of a web server on the other node through every
// frontend.
func TestCurl(t *testing.T) {
	t.Parallel()
	lab.Need(t, "curl", "python3")
	c := newCluster(t, true)
	for _, n := range c.nodes {
		startAgent(t, n, c.service(1, "web", "", []endpoint{remote}))
	}
	pages := t.TempDir()
	if err := os.WriteFile(filepath.Join(pages, "page"), []byte("a page\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.nodes[1].routed.Start("python3", "-m", "http.server", "--bind", "::", "--directory", pages, fmt.Sprint(backendPort))
	for _, network := range networks[:2] {
		for _, f := range frontends {
			url := fmt.Sprintf("http://%s/page", hostPort(f.address(1), network, f.port(1)))
			page, err := c.client.Output("curl", "--silent", "--show-error", "--fail",
				"--retry", "60", "--retry-connrefused", "--retry-delay", "1", url)
			if err != nil || page != "a page\n" {
				t.Errorf("%s %s: %q, %v", network, f.name, page, err)
			}
		}
	}
}

func hostPort(a addrs, network string, port int) string {
	if network[3] == '6' {
		return fmt.Sprintf("[%s]:%d", a.of(network), port)
	}
	return fmt.Sprintf("%s:%d", a.of(network), port)
}

// TestIperf: TCP and UDP streams to a server on the other node, in both directions.
func TestIperf(t *testing.T) {
	tier.Slow(t, "moves gigabytes")
	lab.Need(t, "iperf3")
	c := newCluster(t, false)
	for _, n := range c.nodes {
		startAgent(t, n, c.service(1, "iperf", "", []endpoint{remote}))
	}
	c.nodes[1].routed.Start("iperf3", "--server", "--port", fmt.Sprint(backendPort))
	for _, offload := range offloads {
		offload.set(c)
		for _, network := range []string{"tcp4", "tcp6"} {
			for _, flags := range [][]string{
				{"--bytes", "64M"},
				{"--bytes", "64M", "--reverse"},
				{"--bytes", "2M", "--udp", "--bitrate", "100M", "--length", "1200"},
			} {
				t.Run(strings.Join(append([]string{offload.name, network}, flags...), " "), func(t *testing.T) {
					watchChecksums(t, "client", c.client)
					watchChecksums(t, remote.server(), c.nodes[1].routed)
					c.runIperf(t, append(flags, "--client", nodeAddrs(1).of(network).String()))
				})
			}
		}
	}
}

// runIperf fails the test when iperf3 does or when nothing came over.
func (c *cluster) runIperf(t *testing.T, flags []string) {
	t.Helper()
	type report struct {
		Error string
		End   struct {
			Received struct{ Bytes float64 } `json:"sum_received"`
			Sum      struct{ Bytes float64 }
		}
	}
	var last report
	var out string
	lab.Eventually(t, "iperf3 is served", func() bool {
		var err error
		out, err = c.client.Output("iperf3", append(flags, "--port", fmt.Sprint(nodePort("tcp4", 1).Port()), "--json")...)
		last = report{}
		if err := json.Unmarshal([]byte(out), &last); err != nil {
			t.Fatalf("%q: %v", out, err)
		}
		return err == nil && last.Error == ""
	})
	if last.End.Received.Bytes+last.End.Sum.Bytes == 0 {
		t.Errorf("nothing came over: %s", out)
	}
}
