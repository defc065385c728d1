package cli_test

import (
	"fmt"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/inspect"
	webpage "github.com/beeline-lb/beeline/pkg/inspect/web"
	"github.com/beeline-lb/beeline/pkg/monitor"
	"github.com/beeline-lb/beeline/tests/browser"
	"github.com/beeline-lb/beeline/tests/wait"
)

// told is a listener that is told some events, and then nothing.
type told struct {
	events      chan *inspect.Event
	interrupted chan struct{}
}

func tell(events ...*inspect.Event) *told {
	l := &told{make(chan *inspect.Event, len(events)), make(chan struct{})}
	for _, e := range events {
		l.events <- e
	}
	return l
}

func (l *told) Next() (*inspect.Event, error) {
	select {
	case e := <-l.events:
		return e, nil
	default:
	}
	<-l.interrupted
	return nil, monitor.ErrClosed
}

func (l *told) Interrupt() { close(l.interrupted) }

func (l *told) Close() error { return nil }

// refusedBy is an event of a process that was refused, as long as its texts are.
func refusedBy(command string, service inspect.PortName) *inspect.Event {
	return &inspect.Event{
		Time: now, Kind: inspect.EventRefused, Hook: "connect", Protocol: "TCP", PID: 4071, Command: command,
		ServiceAddress: netip.MustParseAddrPort("10.96.0.30:80"), Service: service,
		Reason: "no_endpoint", Explanation: "no endpoint of the Service can be used, on no node",
	}
}

// droppedFrom is an event of a client elsewhere that was dropped.
func droppedFrom(client string) *inspect.Event {
	return &inspect.Event{
		Time: now, Kind: inspect.EventDropped, Hook: "tc", Protocol: "UDP", Device: "uplink", Client: netip.MustParseAddrPort(client),
		ServiceAddress: netip.MustParseAddrPort("[2001:db8:1111:2222:3333:4444:5555:6666]:30080"),
		Reason:         "source_range", Explanation: "the client is not in loadBalancerSourceRanges",
	}
}

// tellingPage is the page over some maps, told refusals by a listener, or not.
func tellingPage(t *testing.T, bpffs string, listener webpage.Listener, err error) *webpage.Page {
	t.Helper()
	page := webpage.New(webpage.Options{
		Read: func() (*inspect.Sample, error) { return inspect.Read(bpffs, (*inspect.Datapath).Sample) },
		Listen: func(o inspect.EventOptions) (webpage.Listener, error) {
			if slices.Contains(o.Kinds, inspect.EventConnection) && err == nil {
				return tell(), nil
			}
			return listener, err
		},
		Interval: time.Hour,
	})
	t.Cleanup(page.Close)
	return page
}

// TestWebEvents: however many events there are, and however long, an answer is bounded.
func TestWebEvents(t *testing.T) {
	bpffs := newDatapath(t)
	long := inspect.PortName{
		Namespace: strings.Repeat("n", 63), Service: strings.Repeat("s", 63), PortName: strings.Repeat("p", 15), Port: 65535, Protocol: "SCTP",
	}
	var events []*inspect.Event
	for range 1000 {
		events = append(events, refusedBy(hostile[:15], long))
	}
	page := tellingPage(t, bpffs, tell(events...), nil)
	size := func() int { return get(page, "/top").Body.Len() }
	before, most := size(), 0
	wait.Until(t, "the events are in the answer", func() bool {
		most = max(most, size())
		return strings.Count(get(page, "/top").Body.String(), `"no_endpoint"`) >= 20
	})
	if n := ask(t, page, "").Refusals.Events; len(n) != 20 || most-before > 20*1024 {
		t.Errorf("an answer has %d events in %d bytes", len(n), most-before)
	}
}

// TestWebPageEvents: the page shows single refusals with their clients, names of processes as text,
// how many there were besides, and why there are none.
func TestWebPageEvents(t *testing.T) {
	b := browser.New(t)
	bpffs := newDatapath(t)
	service := inspect.PortName{Namespace: "shop", Service: "empty", Port: 80, Protocol: "TCP", Family: "IPv4", ID: emptyID}
	events := []*inspect.Event{
		refusedBy("curl", service), refusedBy("<img src=x>", service), droppedFrom("[2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff]:54321"), droppedFrom("192.0.2.7:51230"),
		{Time: now, Kind: inspect.EventLeftOut, LeftOut: 3120},
	}
	for i := range 5 {
		events = append(events, refusedBy(fmt.Sprintf("worker-%d", i), service))
	}
	for _, c := range []struct {
		name, scheme  string
		width, height int
	}{
		{"events-desktop-light", "light", 1280, 900},
		{"events-phone-dark", "dark", 360, 740},
	} {
		page := tellingPage(t, bpffs, tell(events...), nil)
		wait.Until(t, "the page is told all", func() bool { return len(ask(t, page, "").Refusals.Events) == len(events) })
		server := httptest.NewServer(page)
		t.Cleanup(server.Close)
		b.Window(c.width, c.height, c.scheme)
		b.Open(server.URL)
		b.Shows("single refusals, the latest first", "#refusals", "One by one", "worker-4[4071]", "10.96.0.30:80 TCP", "shop/empty", "refused: no_endpoint",
			"no endpoint of the Service can be used", "worker-0[4071]", "and 3,120 more", "192.0.2.7:51230", "dropped: source_range",
			"[2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff]:54321", "<img src=x>[4071]", "curl[4071]")
		b.Screenshot(c.name)
		b.Fits(c.name)
		b.Contrast(c.name)
	}
	b.Until("no markup came of it", "!document.querySelector('img')")
	b.Click(`#refusals [data-key="shop/empty"]`)
	b.Shows("the Service is chosen", "#chosen", "Service shop/empty")

	server := httptest.NewServer(tellingPage(t, bpffs, nil, monitor.ErrBusy))
	t.Cleanup(server.Close)
	b.Open(server.URL)
	b.Shows("why there are none", "#refusals", "Single refusals are not known now: 4 listen to events already", "Nothing was refused")
	b.NoProblems()
}
