package agent_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/wait"
)

// TestEndpointGone: connected UDP sockets of the host and of pods whose endpoint has gone
// get an error, also when it has gone while no agent ran, and the agent counts them.
func TestEndpointGone(t *testing.T) {
	t.Parallel()
	h := lab.NewHost(t)
	h.ServeBackends()
	h.Pod.Populate()
	slice := func(i int) string { return lab.Slice("web", "web:8080/TCP,dns:8080/UDP", lab.Backend4(i)) }
	s := h.NewStandalone(web, slice(1))
	s.Start()
	for i, down := range []bool{false, true} {
		var sockets []*lab.Socket
		for _, n := range []*lab.Namespace{h.Namespace, h.Pod} {
			c := n.Socket("udp4")
			if err := c.Connect(webUDP); err != nil {
				t.Fatal(err)
			}
			if got, want := askConnected(t, c), fmt.Sprintf("10.77.0.%d:8080", i+1); got != want {
				t.Fatalf("%s answers, want %s", got, want)
			}
			sockets = append(sockets, c)
		}
		if down {
			s.Signal(unix.SIGTERM)
			_ = s.Wait()
		}
		s.Write("first.yaml", web, slice(i+2))
		if down {
			s.Start()
		}
		for _, c := range sockets {
			c.Ready(wait.Limit)
			if _, _, err := c.Receive(); !errors.Is(err, unix.ECONNABORTED) {
				t.Errorf("with the agent down %t: %v, want %v", down, err, unix.ECONNABORTED)
			}
		}
		lab.Eventually(t, "the sockets are counted", func() bool {
			metrics, err := h.Get("http://127.0.0.1:10249/metrics")
			return err == nil && strings.Contains(metrics, "\nbeeline_udp_sockets_destroyed_total 2\n")
		})
	}
}
