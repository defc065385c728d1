package apiserver

import (
	"context"
	"fmt"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/beeline-lb/beeline/pkg/event"
	"github.com/beeline-lb/beeline/pkg/source/kube"
)

// testEvents: of a fault that five agents see at once there is one event, with what people
// look for; when it comes again it is counted there.
func testEvents(t *testing.T, c *cluster) {
	ctx, cancel := context.WithCancel(context.Background())
	var agents []*kube.Source
	ended := make(chan error)
	for i := range 5 {
		src, err := kube.New(kube.Options{
			Config: c.server.Config, NodeName: fmt.Sprint("node-", i), Sink: newRecorder(), EventSpread: time.Millisecond,
		})
		must(t, err)
		agents = append(agents, src)
		go func() { ended <- src.Run(ctx) }()
	}
	t.Cleanup(func() {
		cancel()
		for range agents {
			if err := <-ended; err != nil {
				t.Errorf("source ended with %v", err)
			}
		}
	})
	fault := func(what string) {
		for _, a := range agents {
			a.Record(event.Event{
				Service: c.name("web"), Type: event.Warning, Reason: event.InvalidSetting, Action: "ReadAnnotations",
				Fault: what, Note: what + "; the default counts",
			})
		}
	}
	list := func() []eventsv1.Event {
		l, err := c.client.EventsV1().Events(c.namespace).List(t.Context(), metav1.ListOptions{})
		must(t, err)
		return l.Items
	}
	wait := func(what string, ok func([]eventsv1.Event) bool) {
		t.Helper()
		var got []eventsv1.Event
		for deadline := time.Now().Add(awaitTimeout); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			if got = list(); ok(got) {
				return
			}
		}
		t.Fatalf("%s: not within %s; the events are %+v", what, awaitTimeout, got)
	}
	fault("first")
	wait("an event", func(l []eventsv1.Event) bool { return len(l) == 1 })
	if e := list()[0]; e.Regarding.Kind != "Service" || e.Regarding.Name != "web" || e.Reason != event.InvalidSetting ||
		e.Note != "first; the default counts" || e.Series != nil {
		t.Errorf("the event is %+v", e)
	}
	fault("second")
	wait("the other fault's event", func(l []eventsv1.Event) bool { return len(l) == 2 })
	wait("the second fault is counted", func(l []eventsv1.Event) bool {
		fault("second")
		for _, e := range l {
			if e.Note == "second; the default counts" && e.Series != nil && e.Series.Count > 3 {
				return true
			}
		}
		return false
	})
	if got := list(); len(got) != 2 {
		t.Errorf("%d events of two faults: %+v", len(got), got)
	}
}
