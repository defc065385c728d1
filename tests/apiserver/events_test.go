package apiserver

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/beeline-lb/beeline/pkg/event"
	"github.com/beeline-lb/beeline/pkg/source/kube"
)

// agentController is who events of agents are from; the API server has some of its own about Services.
const agentController = "beeline-agent"

// testEvents: of a fault that five agents see at once there is one event, with what people and "kubectl describe"
// look for; when it comes again it is counted there. A Service of the same name is another one.
func testEvents(t *testing.T, c *cluster) {
	ctx, cancel := context.WithCancel(context.Background())
	var agents []*kube.Source
	var sinks []*recorder
	ended := make(chan error)
	web := c.createService(t, c.service("web"))
	for i := range 5 {
		sink := newRecorder()
		src, err := kube.New(kube.Options{
			Config: c.server.Config, NodeName: fmt.Sprint("node-", i), Sink: sink, EventSpread: time.Millisecond,
		})
		must(t, err)
		agents, sinks = append(agents, src), append(sinks, sink)
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
	// known waits until each agent knows of the Service at a port.
	known := func(port int) {
		t.Helper()
		for _, sink := range sinks {
			sink.await(t, "the Service", func() bool {
				s := sink.services[c.name("web")]
				return s != nil && int(s.Ports[0].Port) == port
			})
		}
	}
	known(80)
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
		return slices.DeleteFunc(l.Items, func(e eventsv1.Event) bool { return e.ReportingController != agentController })
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
	// described are the events that "kubectl describe" shows of a Service.
	described := func(s *corev1.Service) []corev1.Event {
		t.Helper()
		l, err := c.client.CoreV1().Events(c.namespace).List(t.Context(), metav1.ListOptions{
			FieldSelector: fmt.Sprintf("involvedObject.kind=Service,involvedObject.name=%s,involvedObject.uid=%s", s.Name, s.UID),
		})
		must(t, err)
		return slices.DeleteFunc(l.Items, func(e corev1.Event) bool { return e.ReportingController != agentController })
	}
	if got := described(web); len(got) != 2 {
		t.Errorf("the Service is described with %+v, want both events", got)
	}
	c.deleteService(t, "web")
	other := c.service("web")
	other.Spec.Ports[0].Port = 81
	other = c.createService(t, other)
	known(81)
	fault("first")
	wait("an event of the other Service", func(l []eventsv1.Event) bool { return len(l) == 3 })
	if got := described(other); len(got) != 1 {
		t.Errorf("the other Service is described with %+v, want its own event", got)
	}
}
