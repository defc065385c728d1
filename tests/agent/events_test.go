package agent_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/event"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/tests/apiserver"
	"github.com/beeline-lb/beeline/tests/lab"
)

// createFaulty creates Services with an annotation that cannot be used.
func (c *cluster) createFaulty(prefix string, count int) {
	c.t.Helper()
	for i := range count {
		s := c.createService(fmt.Sprint(prefix, i), "")
		s.Annotations = map[string]string{model.AnnotationAlgorithm: "nonsense"}
		if _, err := c.client.CoreV1().Services("default").Update(c.t.Context(), s, metav1.UpdateOptions{}); err != nil {
			c.t.Fatal(err)
		}
	}
}

// faultEvents returns the events about annotations of Services whose names begin with
// prefix, by Service.
func (c *cluster) faultEvents(prefix string) map[string]eventsv1.Event {
	c.t.Helper()
	return c.events(event.InvalidSetting, prefix)
}

// events returns the events of a reason about Services whose names begin with prefix, by Service.
func (c *cluster) events(reason, prefix string) map[string]eventsv1.Event {
	c.t.Helper()
	list, err := c.client.EventsV1().Events("default").List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	events := make(map[string]eventsv1.Event)
	for _, e := range list.Items {
		if e.Reason == reason && strings.HasPrefix(e.Regarding.Name, prefix) {
			events[e.Regarding.Name] = e
		}
	}
	return events
}

// serveCluster starts an agent for the cluster and returns when it serves.
func (c *cluster) serveCluster(flags ...string) *lab.Process {
	c.t.Helper()
	p := c.host.Start(lab.AgentBinary(c.t), append(flags, "--kubeconfig", c.server.Kubeconfig, "--hostname-override", lab.NodeName,
		"--cgroup-root", c.host.Cgroup, "--bpffs", c.host.BPFFS)...)
	lab.Eventually(c.t, "the agent serves", func() bool { return strings.Contains(p.Output(), `"Serving"`) })
	return p
}

// eventsWait reports whether an agent of the host has events to send, or had when it ended.
func (c *cluster) eventsWait() bool {
	c.t.Helper()
	maps, err := bpfmap.Open(datapath.Dir(c.host.BPFFS))
	if err != nil {
		c.t.Fatal(err)
	}
	defer maps.Close()
	return statusmap.New(maps).Agent().EventsWait
}

// TestEventsAfterRestart: an agent that starts again makes the events that its former run has not
// come to, and none about other faults that this has found; it does about those that come then, or
// with another configuration.
func TestEventsAfterRestart(t *testing.T) {
	t.Parallel()
	const old, later = 6, 6
	c := &cluster{t: t, server: apiserver.Start(t), host: lab.NewHost(t)}
	c.client = c.server.Client(t)
	c.host.Relay(strings.TrimPrefix(c.server.Config.Host, "https://"))
	kill := func(p *lab.Process) {
		p.Signal(unix.SIGKILL)
		_ = p.Wait() // killed
	}
	allMade := func() bool { return len(c.faultEvents("old-")) == old && !c.eventsWait() }
	c.createFaulty("old-", old)
	first := c.serveCluster()
	lab.Eventually(t, "an event about an old fault", func() bool { return len(c.faultEvents("old-")) > 0 })
	kill(first)

	second := c.serveCluster()
	lab.Eventually(t, "events about all old faults", allMade)
	kill(second)

	third := c.serveCluster()
	before := c.faultEvents("old-")
	c.createFaulty("later-", later)
	// Each is made at a random time within a minute: if the old ones were made again, one would be
	// before two of the others, mostly.
	lab.Eventually(t, "events about two later faults", func() bool { return len(c.faultEvents("later-")) > 1 })
	after := c.faultEvents("old-")
	maps.DeleteFunc(after, func(name string, e eventsv1.Event) bool {
		was, there := before[name]
		return there && e.ResourceVersion == was.ResourceVersion
	})
	if len(after) > 0 {
		t.Errorf("the restart made or changed events about %v", slices.Sorted(maps.Keys(after)))
	}
	kill(third)

	if err := c.client.EventsV1().Events("default").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	c.serveCluster("--service-metrics-limit=7")
	lab.Eventually(t, "an event about an old fault, with another configuration", func() bool { return len(c.faultEvents("old-")) > 0 })
}

// TestEjectionEvents: an endpoint that refuses connections has an event on its Service. Of that many
// Services, one has it soon.
func TestEjectionEvents(t *testing.T) {
	t.Parallel()
	const services = 20
	c := &cluster{t: t, server: apiserver.Start(t), host: lab.NewHost(t)}
	c.client = c.server.Client(t)
	c.host.Relay(strings.TrimPrefix(c.server.Config.Host, "https://"))
	agent := c.serveCluster("--outlier-detection", "failures=2")
	for i := range services {
		name := fmt.Sprint("refuses-", i)
		s := c.createService(name, "")
		c.putSlice(name, endpoint(1, true), endpoint(2, true))
		lab.Eventually(t, "an endpoint of "+name+" is ejected", func() bool {
			socket := c.host.Socket("tcp4")
			defer socket.Close()
			_ = socket.Connect(netip.AddrPortFrom(netip.MustParseAddr(s.Spec.ClusterIP), 80)) // refused, once it is served
			return strings.Contains(agent.Output(), `service="default/`+name+`/TCP"`)
		})
	}
	lab.Eventually(t, "an event", func() bool { return len(c.events(event.EndpointEjected, "refuses-")) > 0 })
	for name, e := range c.events(event.EndpointEjected, "refuses-") {
		if e.Regarding.Kind != "Service" || e.Type != corev1.EventTypeWarning || !strings.Contains(e.Note, ":8080 of default/"+name+"/TCP fail") {
			t.Errorf("the event is %+v", e)
		}
	}
}
