package agent_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
)

// TestPages: health, and metrics that count what was chosen and refused.
func TestPages(t *testing.T) {
	t.Parallel()
	h, _ := start(t)
	for range 7 {
		mustReach(t, h, "tcp4", webTCP)
	}
	refused := netip.AddrPortFrom(webTCP.Addr(), 81)
	if !fails(h, refused, unix.ECONNREFUSED)() {
		t.Errorf("%s is not refused", refused)
	}
	for _, url := range []string{"http://127.0.0.1:10256/healthz", "http://127.0.0.1:10256/livez"} {
		if _, err := h.Get(url); err != nil {
			t.Error(err)
		}
	}
	if _, err := h.Get("http://127.0.0.1:10245/"); err == nil {
		t.Error("the web page is served although nobody asked for it")
	}
	metrics, err := h.Get("http://127.0.0.1:10249/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		`beeline_connections_total 7`,
		`beeline_datapath_events_total{effect="refused",reason="undeclared_port"} 1`,
		`beeline_nodes{answer="accepts"} 0`,
		`beeline_nodes{answer="unreachable"} 0`,
		`beeline_table_entries{map="bl_service"} 3`,
	} {
		if !strings.Contains(metrics, line+"\n") {
			t.Errorf("metrics lack %s:\n%s", line, metrics)
		}
	}
}

// TestServiceMetrics: by default no Service has metrics of its own. With a limit, those have them
// that are named, then the busiest. The sum counts connections of Services that are gone, too.
func TestServiceMetrics(t *testing.T) {
	t.Parallel()
	h := lab.NewHost(t)
	h.ServeBackends()
	addrs := make(map[string]netip.AddrPort)
	s := h.NewStandalone()
	for i, name := range []string{"busy", "idle", "quiet"} {
		addrs[name] = netip.MustParseAddrPort(fmt.Sprintf("10.96.0.%d:80", i+1))
		s.Write(name+".yaml", lab.Service(name, fmt.Sprintf(`{clusterIP: %s, ports: [{port: 80}]}`, addrs[name].Addr())), lab.Slice(name, "8080/TCP", lab.Backend4(1)))
	}
	s.Start()
	for name, times := range map[string]int{"busy": 3, "quiet": 1} {
		for range times {
			mustReach(t, h, "tcp4", addrs[name])
		}
	}
	want := func(when string, want ...string) {
		t.Helper()
		var got []string
		defer func() {
			if t.Failed() {
				t.Logf("%s: want %q, last seen %q", when, want, got)
			}
		}()
		lab.Eventually(t, when, func() bool {
			metrics, err := h.Get("http://127.0.0.1:10249/metrics")
			if err != nil {
				return false
			}
			got = got[:0]
			for line := range strings.Lines(metrics) {
				if _, series, ok := strings.Cut(line, "beeline_service_connections_total{"); ok && strings.HasPrefix(line, "beeline") {
					_, name, _ := strings.Cut(series, `service="`)
					got = append(got, strings.NewReplacer(`"}`, "", "\n", "").Replace(name))
				} else if total, ok := strings.CutPrefix(line, "beeline_connections_total "); ok {
					got = append(got, strings.TrimSpace(total))
				}
			}
			return slices.Equal(got, want)
		})
	}
	want("by default", "4")
	s.Signal(unix.SIGTERM)
	if err := s.Wait(); err != nil {
		t.Fatal(err)
	}
	s.Start("--service-metrics-limit=2", "--service-metrics=default/idle,default/gone")
	want("named and busiest", "4", "busy 3", "idle 0")
	s.Remove("busy.yaml")
	want("the busiest is gone", "4", "idle 0", "quiet 1")
	mustReach(t, h, "tcp4", addrs["quiet"])
	want("one more", "5", "idle 0", "quiet 2")
}

// TestTerminateWhileScraped: on SIGTERM the agent answers those requests in full that it has
// begun to answer, from maps that are there as long, and then ends well.
func TestTerminateWhileScraped(t *testing.T) {
	t.Parallel()
	h := lab.NewHost(t)
	s := h.NewStandalone(web, webSlice)
	s.Start("--profiling")
	const server = "http://127.0.0.1:10249"

	profile := make(chan error, 1)
	go func() {
		body, err := h.Get(server + "/debug/pprof/profile?seconds=1")
		if err == nil && body == "" {
			err = errors.New("the answer is empty")
		}
		profile <- err
	}()
	lab.Eventually(t, "a request takes its time", func() bool {
		running, err := h.Get(server + "/debug/pprof/goroutine?debug=2")
		return err == nil && strings.Contains(running, "pprof.Profile(")
	})
	var scraped atomic.Int64
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for {
				metrics, err := scrape(h, server+"/metrics")
				if err != nil {
					t.Errorf("scrape %d: %v", scraped.Load()+1, err)
				}
				if metrics == "" {
					return
				}
				if !strings.Contains(metrics, "\nbeeline_table_entries{map=\"bl_service\"} 2\n") {
					t.Errorf("a scrape lacks the tables:\n%s", metrics)
				}
				scraped.Add(1)
			}
		})
	}
	lab.Eventually(t, "the agent is scraped", func() bool { return scraped.Load() > 8 })
	s.Signal(unix.SIGTERM)
	if err := <-profile; err != nil {
		t.Errorf("the request that was being answered: %v", err)
	}
	if err := s.Wait(); err != nil {
		t.Errorf("the agent ended with %v", err)
	}
	clients.Wait()
	t.Logf("scraped %d times", scraped.Load())
}

// scrape returns a page, nothing when the server does not begin to answer any more. An answer
// that breaks off is an error.
func scrape(h *lab.Host, url string) (string, error) {
	response, err := h.HTTPClient().Get(url)
	if err != nil {
		return "", nil
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusServiceUnavailable { // the agent ends
		return "", nil
	}
	body, err := io.ReadAll(response.Body)
	if err == nil && (response.StatusCode != http.StatusOK || len(body) == 0) {
		err = fmt.Errorf("%s with %d bytes", response.Status, len(body))
	}
	return string(body), err
}

// TestClientMetrics: requests to the API server are counted by kube-proxy's names, and its page of SLIs is
// there.
func TestClientMetrics(t *testing.T) {
	t.Parallel()
	h := lab.NewHost(t)
	h.Start(lab.AgentBinary(t), "--master", "http://127.0.0.1:1", "--hostname-override", lab.NodeName, "--cgroup-root", h.Cgroup, "--bpffs", h.BPFFS)
	want := []string{
		`rest_client_requests_total{code="<error>",host="127.0.0.1:1",method="GET"} `,
		`rest_client_request_duration_seconds_bucket{host="127.0.0.1:1",verb="POST",le="60"} `, // of events; lists are streams, which client-go does not time
	}
	lab.Eventually(t, "requests are counted", func() bool {
		page, err := h.Get("http://127.0.0.1:10249/metrics")
		return err == nil && !slices.ContainsFunc(want, func(line string) bool { return !strings.Contains(page, "\n"+line) })
	})
	if page, err := h.Get("http://127.0.0.1:10249/metrics/slis"); err != nil || page != "" {
		t.Errorf("/metrics/slis: %q, %v", page, err)
	}
}
