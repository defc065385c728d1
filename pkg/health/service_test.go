package health

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/event"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/tests/wait"
)

// balancer asks Services whose servers run until the test ends.
type balancer struct {
	t        *testing.T
	services *Services
	stop     func()

	mu      sync.Mutex
	healthy bool
	events  []event.Event
}

func newBalancer(t *testing.T, nodePorts ...string) *balancer {
	t.Helper()
	ports, err := policy.ParseNodePortAddresses(nodePorts)
	if err != nil {
		t.Fatal(err)
	}
	return newBalancerWith(t, ServicesOptions{NodePorts: ports})
}

// newBalancerWith asks Services with these options, and those that all tests have.
func newBalancerWith(t *testing.T, opts ServicesOptions) *balancer {
	t.Helper()
	b := &balancer{t: t, healthy: true}
	b.services = NewServices(ServicesOptions{
		NodeName:  "node-1",
		NodePorts: opts.NodePorts,
		Reported:  opts.Reported,
		Healthy: func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.healthy
		},
		Record: func(e event.Event) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.events = append(b.events, e)
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		b.services.Run(ctx)
		close(done)
	}()
	b.stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(b.stop)
	return b
}

// set tells of a Service's port and endpoints.
func (b *balancer) set(name string, port uint16, local int) {
	b.services.Update([]policy.HealthCheck{{
		Service: model.Name{Namespace: "shop", Name: name}, Family: model.IPv4, Port: port, Local: local,
	}}, nil)
}

func (b *balancer) setAddrs(addrs ...string) {
	list := []netip.Addr{}
	for _, a := range addrs {
		list = append(list, netip.MustParseAddr(a))
	}
	b.services.Update(nil, list)
}

func (b *balancer) setHealthy(healthy bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.healthy = healthy
}

// answer returns the status and the body, or the error of the connection.
func answer(addr string, port uint16) string {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(fmt.Sprintf("http://%s:%d/", addr, port))
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintln(response.StatusCode, response.Header.Get("X-Load-Balancing-Endpoint-Weight"), string(body))
}

// eventually waits until the answer has all parts.
func (b *balancer) eventually(addr string, port uint16, parts ...string) {
	b.t.Helper()
	var got string
	for deadline := time.Now().Add(wait.Limit); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		got = answer(addr, port)
		missing := false
		for _, p := range parts {
			missing = missing || !strings.Contains(got, p)
		}
		if !missing {
			return
		}
	}
	b.t.Fatalf("%s:%d answers %q, want %q", addr, port, got, parts)
}

// occupy listens on a free port of 127.0.0.1 until it is released or the test ends.
func occupy(t *testing.T) (port uint16, release func()) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return netip.MustParseAddrPort(l.Addr().String()).Port(), func() { l.Close() }
}

func freePort(t *testing.T) uint16 {
	t.Helper()
	port, release := occupy(t)
	release()
	return port
}

const refused = "connection refused"

func TestEndpointsAndHealthDecide(t *testing.T) {
	b, port := newBalancer(t), freePort(t)
	b.set("cart", port, 2)
	b.eventually("127.0.0.1", port, "200 2 ", `"name": "cart"`, `"localEndpoints": 2,`, `"serviceProxyHealthy": true`)
	b.setHealthy(false)
	b.eventually("127.0.0.1", port, "503 2 ", `"localEndpoints": 2,`, `"serviceProxyHealthy": false`)
	b.setHealthy(true)
	b.set("cart", port, 0)
	b.eventually("127.0.0.1", port, "503 0 ", `"localEndpoints": 0,`, `"serviceProxyHealthy": true`)

	other := freePort(t)
	b.set("cart", other, 1)
	b.eventually("127.0.0.1", other, "200 1 ")
	b.eventually("127.0.0.1", port, refused)
	b.set("cart", 0, 0)
	b.eventually("127.0.0.1", other, refused)
}

// TestPortInUse: the Service whose port is in use is logged once and served when the
// port is free; others do not wait for it.
func TestPortInUse(t *testing.T) {
	b := newBalancer(t)
	taken, release := occupy(t)
	free := freePort(t)
	b.set("blocked", taken, 1)
	b.set("cart", free, 1)
	b.eventually("127.0.0.1", free, "200 1 ")
	// Each change is another attempt, which is over when the next change shows.
	for local := 2; local < 5; local++ {
		b.set("cart", free, local)
		b.eventually("127.0.0.1", free, fmt.Sprintf("200 %d ", local))
	}
	release()
	b.eventually("127.0.0.1", taken, "200 1 ", "blocked")
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.events) != 1 || b.events[0].Service.Name != "blocked" || b.events[0].Type != event.Warning ||
		b.events[0].Reason != "FailedToStartServiceHealthcheck" || !strings.Contains(b.events[0].Note, fmt.Sprint(taken)) {
		t.Errorf("events %+v, want one about the blocked Service and its port", b.events)
	}
}

// TestAcceptFails: a port whose listener the kernel ends answers again.
func TestAcceptFails(t *testing.T) {
	b, port := newBalancer(t), freePort(t)
	b.set("cart", port, 1)
	for range 2 {
		b.eventually("127.0.0.1", port, "200 1 ")
		shutListeners(t, port)
	}
	b.eventually("127.0.0.1", port, "200 1 ")
}

// shutListeners has accept() fail at those sockets of the process that listen on a port.
func shutListeners(t *testing.T, port uint16) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, entry := range fds {
		fd, err := strconv.Atoi(entry.Name())
		if err != nil {
			t.Fatal(err)
		}
		if listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err != nil || listens == 0 {
			continue
		}
		addr, err := unix.Getsockname(fd)
		if at, ok := addr.(*unix.SockaddrInet4); err == nil && ok && at.Port == int(port) {
			found = true
			if err := unix.Shutdown(fd, unix.SHUT_RD); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !found {
		t.Fatalf("nobody listens on port %d", port)
	}
}

// TestPortInUseAfterRestart: of a port that is in use when an agent takes over the former one
// has made the event; of one that is taken later the agent makes one.
func TestPortInUseAfterRestart(t *testing.T) {
	taken, release := occupy(t)
	later, _ := occupy(t)
	free := freePort(t)
	want := func(b *balancer, ports ...uint16) {
		t.Helper()
		wait.Until(t, fmt.Sprint("an event for each port of ", ports), func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return len(b.events) >= len(ports)
		})
		b.mu.Lock()
		defer b.mu.Unlock()
		for i, e := range b.events {
			if i >= len(ports) || e.Fault != fmt.Sprint("port ", ports[i]) {
				t.Errorf("event %d is %+v, want those of ports %d", i+1, e, ports)
			}
		}
	}
	for _, restarted := range []bool{false, true} {
		b := newBalancerWith(t, ServicesOptions{Reported: restarted})
		first := []policy.HealthCheck{
			{Service: model.Name{Namespace: "shop", Name: "blocked"}, Family: model.IPv4, Port: taken, Local: 1},
			{Service: model.Name{Namespace: "shop", Name: "cart"}, Family: model.IPv4, Port: free, Local: 1},
		}
		b.services.Update(first, nil)
		b.eventually("127.0.0.1", free, "200 1 ") // the first attempt is on its way
		b.set("later", later, 1)
		if !restarted {
			want(b, taken, later)
			b.stop()
			continue
		}
		want(b, later)
		release()
		b.eventually("127.0.0.1", taken, "200 1 ", "blocked")
		want(b, later)
	}
}

// TestAddresses: with nodePortAddresses, only the selected addresses answer, and they
// follow those of the machine.
func TestAddresses(t *testing.T) {
	b, port := newBalancer(t, "127.0.8.0/24"), freePort(t)
	b.setAddrs("127.0.8.1", "127.0.8.2", "::1")
	b.set("cart", port, 1)
	b.eventually("127.0.8.1", port, "200")
	b.eventually("127.0.8.2", port, "200")
	b.eventually("127.0.0.1", port, refused)
	b.setAddrs("127.0.8.2", "127.0.8.3")
	b.eventually("127.0.8.3", port, "200")
	b.eventually("127.0.8.2", port, "200")
	b.eventually("127.0.8.1", port, refused)
	b.setAddrs()
	b.eventually("127.0.8.2", port, refused)
}

// TestFamiliesAreApart: each family answers with its own endpoints, on one port.
func TestFamiliesAreApart(t *testing.T) {
	b, port := newBalancer(t), freePort(t)
	name := model.Name{Namespace: "shop", Name: "cart"}
	b.services.Update([]policy.HealthCheck{
		{Service: name, Family: model.IPv4, Port: port, Local: 1},
		{Service: name, Family: model.IPv6, Port: port, Local: 2},
	}, nil)
	b.eventually("127.0.0.1", port, "200 1 ")
	b.eventually("[::1]", port, "200 2 ")
}

// TestOneFamily: a Service of one family answers at the node's addresses of both, until
// it has the other one too.
func TestOneFamily(t *testing.T) {
	b, port := newBalancer(t), freePort(t)
	b.setAddrs("127.0.0.1", "::1")
	b.set("cart", port, 1)
	b.eventually("127.0.0.1", port, "200 1 ")
	b.eventually("[::1]", port, "200 1 ")
	b.services.Update([]policy.HealthCheck{
		{Service: model.Name{Namespace: "shop", Name: "cart"}, Family: model.IPv6, Port: port, Local: 2},
	}, nil)
	b.eventually("[::1]", port, "200 2 ")
	b.eventually("127.0.0.1", port, "200 1 ")
}
