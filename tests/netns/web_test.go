package netns_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/inspect/web"
	"github.com/beeline-lb/beeline/pkg/monitor"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// newPage returns the web page of a host.
func newPage(t *testing.T, h *lab.Host) *web.Page {
	t.Helper()
	page := web.New(web.Options{
		Read:     func() (*inspect.Sample, error) { return inspect.Read(h.BPFFS, (*inspect.Datapath).Sample) },
		Listen:   func(o inspect.EventOptions) (web.Listener, error) { return inspect.Listen(h.BPFFS, o) },
		Interval: 100 * time.Millisecond,
	})
	t.Cleanup(page.Close)
	return page
}

// webAnswer is what the tests look at of what the page shows.
type webAnswer struct {
	Refusals struct {
		Events   []inspect.Event
		NotHeard string
	}
	Traffic struct{ NewConnections inspect.TopNew }
}

// look returns what the page shows.
func look(t *testing.T, page *web.Page) (a webAnswer) {
	t.Helper()
	w := httptest.NewRecorder()
	page.ServeHTTP(w, httptest.NewRequest("GET", "http://127.0.0.1/top", nil))
	if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil || w.Code != http.StatusOK {
		t.Fatalf("status %d, %v: %s", w.Code, err, w.Body)
	}
	return a
}

// isOf reports whether an event is a connection of this process to an address, with an end.
func isOf(t *testing.T, e *inspect.Event, kind, to, service, reason string) bool {
	return e.Kind == kind && e.Protocol == "TCP" && e.ServiceAddress == ap(to) && e.Service.String() == service &&
		e.Reason == reason && e.Explanation != "" && e.PID == uint32(os.Getpid()) && e.Command == commandOf(t)
}

// TestWebRefusals: the web page shows who was refused or dropped and why, nothing else, listens
// while somebody looks, and gives its place back.
func TestWebRefusals(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{ServiceRanges: serviceRanges})
	a.Apply(dual, lab.Slice("dual", "web:8080/TCP", backends4(1)...), lab.Service("none", "{clusterIP: 10.96.0.9, ports: [{port: 80}]}"))
	maps, page := openMaps(t, h), newPage(t, h)
	if listening(maps) != 0 {
		t.Error("the page listens before somebody looks")
	}
	lab.Eventually(t, "a connection that is refused and one that is dropped are shown", func() bool {
		look(t, page)
		mustReach(t, h.Namespace, "tcp4", dualTCP4)
		wantFailure(t, h.Namespace, "tcp4", ap("10.96.0.9:80"), unix.ECONNREFUSED)
		wantFailure(t, h.Namespace, "tcp4", ap("10.96.0.77:80"), unix.EHOSTUNREACH)
		var refused, dropped bool
		events := look(t, page).Refusals.Events
		for i := range events {
			e := &events[i]
			isRefused := isOf(t, e, inspect.EventRefused, "10.96.0.9:80", "default/none", "no_endpoint")
			isDropped := isOf(t, e, inspect.EventDropped, "10.96.0.77:80", "-", "unallocated_address")
			if !isRefused && !isDropped && e.Kind != inspect.EventLeftOut {
				t.Errorf("the page shows %+v", e)
			}
			refused, dropped = refused || isRefused, dropped || isDropped
		}
		return refused && dropped
	})
	lab.Eventually(t, "the page listens no longer when nobody looks", func() bool { return listening(maps) == 0 })

	for range monitor.Max {
		listen(t, maps, monitor.Options{Rate: 10})
	}
	lab.Eventually(t, "that no place is free is said of refusals and of new connections, beside what was heard", func() bool {
		a, busy := look(t, page), monitor.ErrBusy.Error()
		return len(a.Refusals.Events) > 0 && a.Refusals.NotHeard == busy && a.Traffic.NewConnections.NotHeard == busy
	})
}

// TestWebCloses: who ends the page gives its place back at once.
func TestWebCloses(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{ServiceRanges: serviceRanges})
	a.Apply(dual)
	maps, page := openMaps(t, h), newPage(t, h)
	look(t, page)
	if page.Close(); listening(maps) != 0 {
		t.Error("a page that is closed listens")
	}
}
