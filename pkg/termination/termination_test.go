package termination

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
)

var (
	web    = model.Name{Namespace: "default", Name: "web"}
	first  = netip.MustParseAddrPort("10.0.0.1:8080")
	second = netip.MustParseAddrPort("[fd00::1]:8080")
)

// node is a Watcher that runs, over connections that the test sets.
type node struct {
	*Watcher
	stop  func()
	ready chan struct{}

	lock        sync.Mutex
	connections map[netip.AddrPort]int
	err         error
}

// have has an endpoint have so many connections.
func (n *node) have(endpoint netip.AddrPort, connections int) {
	n.lock.Lock()
	defer n.lock.Unlock()
	n.connections[endpoint] = connections
}

// fail has counts fail; nil: no more.
func (n *node) fail(err error) {
	n.lock.Lock()
	defer n.lock.Unlock()
	n.err = err
}

// in runs a test beside a Watcher that knows all Services, on a clock of its own.
func in(t *testing.T, test func(t *testing.T, n *node)) {
	t.Helper()
	inStarting(t, func(t *testing.T, n *node) {
		close(n.ready)
		test(t, n)
	})
}

// inStarting is in with a Watcher that knows all Services once the test has closed ready.
func inStarting(t *testing.T, test func(t *testing.T, n *node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := &node{connections: make(map[netip.AddrPort]int), ready: make(chan struct{})}
		n.Watcher = New(Options{
			Ready: n.ready,
			Known: func(s model.Name) bool { return s == web },
			Count: func([]netip.AddrPort) (map[netip.AddrPort]int, error) {
				n.lock.Lock()
				defer n.lock.Unlock()
				return maps.Clone(n.connections), n.err
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { n.Run(ctx); close(done) }()
		n.stop = func() { cancel(); <-done }
		defer n.stop()
		test(t, n)
	})
}

// answered is what a request has got; nil while it waits.
type answered struct {
	atomic.Pointer[httptest.ResponseRecorder]
}

// ask asks for a Service as the kubelet does, in the background.
func (n *node) ask(service, query string) *answered { return n.askFrom("127.0.0.1", service, query) }

// askFrom asks for a Service from an address, in the background.
func (n *node) askFrom(addr, service, query string) *answered {
	return n.askAll(addr, "default", service, query)
}

// askOf asks for a Service of another namespace as the kubelet does, in the background.
func (n *node) askOf(namespace, service string) *answered {
	return n.askAll("127.0.0.1", namespace, service, "")
}

func (n *node) askAll(addr, namespace, service, query string) *answered {
	a := new(answered)
	request := httptest.NewRequest(http.MethodGet, "/wait-until-drained/"+namespace+"/"+service+query, nil)
	request.SetPathValue("namespace", namespace)
	request.SetPathValue("service", service)
	request.RemoteAddr = net.JoinHostPort(addr, "1234")
	go func() {
		to := httptest.NewRecorder()
		n.ServeHTTP(to, request)
		a.Store(to)
	}()
	return a
}

// after lets time pass, and wants a request to have got a status by then; 0: that it waits.
func (a *answered) after(t *testing.T, d time.Duration, status int, body string) {
	t.Helper()
	time.Sleep(d)
	synctest.Wait()
	code, text := 0, ""
	if to := a.Load(); to != nil {
		code, text = to.Code, strings.TrimSpace(to.Body.String())
	}
	if code != status || text != body {
		t.Errorf("after %s: %d %s, want %d %s", d, code, text, status, body)
	}
}

// TestWait: a request is answered when the last connection has gone, of several endpoints and after the time
// until all nodes know.
func TestWait(t *testing.T) {
	in(t, func(t *testing.T, n *node) {
		n.have(first, 2)
		n.have(second, 1)
		n.Set(web, []netip.AddrPort{first, second})
		a := n.ask("web", "")
		a.after(t, time.Minute, 0, "")
		if all := n.Endpoints(); len(all) != 2 || all[0].Connections != 2 || all[1].Connections != 1 {
			t.Errorf("endpoints %+v", all)
		}
		n.have(first, 0)
		a.after(t, time.Minute, 0, "")
		n.ask("web", "?timeout=0s").after(t, 0, http.StatusGatewayTimeout, `{"endpoints":[{"endpoint":"10.0.0.1:8080","connections":0},{"endpoint":"[fd00::1]:8080","connections":1}],"error":"they have connections still"}`)
		n.have(second, 0)
		a.after(t, 2*time.Second, http.StatusOK, `{"endpoints":[{"endpoint":"10.0.0.1:8080","connections":0},{"endpoint":"[fd00::1]:8080","connections":0}]}`)
		n.Set(web, nil)
		time.Sleep(interval)
		synctest.Wait()
		if all := n.Endpoints(); len(all) > 0 {
			t.Errorf("none terminates, endpoints %+v", all)
		}
	})
}

// TestStarting: while not all Services are known, a request is told of neither Services nor endpoints. It
// waits for one that terminates from when they are.
func TestStarting(t *testing.T) {
	inStarting(t, func(t *testing.T, n *node) {
		const starts = `{"endpoints":[],"error":"the agent starts, and does not know all Services yet"}`
		known, unknown := n.ask("web", ""), n.ask("other", "")
		n.ask("web", "?timeout=20s").after(t, 20*time.Second, http.StatusGatewayTimeout, starts)
		n.ask("other", "?timeout=0s").after(t, 0, http.StatusGatewayTimeout, starts)
		known.after(t, time.Hour, 0, "")
		unknown.after(t, 0, 0, "")
		close(n.ready)
		unknown.after(t, 0, http.StatusNotFound, `{"endpoints":[],"error":"there is no Service default/other"}`)
		n.ask("web", "?timeout=0s").after(t, 0, http.StatusGatewayTimeout, `{"endpoints":[],"error":"none terminates on this node yet"}`)
		known.after(t, unseen-time.Second, 0, "")
		known.after(t, time.Second, http.StatusOK, `{"endpoints":[]}`)
	})
	inStarting(t, func(t *testing.T, n *node) {
		a := n.ask("web", "")
		a.after(t, time.Minute, 0, "")
		n.stop()
		a.after(t, 0, http.StatusServiceUnavailable, `{"endpoints":[],"error":"the agent ends"}`)
	})
}

// TestWaitForNodes: without a connection, an endpoint is not drained before other nodes know that it
// terminates.
func TestWaitForNodes(t *testing.T) {
	in(t, func(t *testing.T, n *node) {
		a := n.ask("web", "")
		a.after(t, 5*time.Second, 0, "")
		n.Set(web, []netip.AddrPort{first})
		a.after(t, settleTime-time.Second, 0, "")
		n.Set(web, []netip.AddrPort{first, second})
		a.after(t, 2*time.Second, 0, "")
		a.after(t, settleTime, http.StatusOK, `{"endpoints":[{"endpoint":"10.0.0.1:8080","connections":0},{"endpoint":"[fd00::1]:8080","connections":0}]}`)
	})
}

// TestSet: an endpoint that goes on terminating keeps what is known of it, whichever come and go around it.
func TestSet(t *testing.T) {
	in(t, func(t *testing.T, n *node) {
		at := func(hosts ...byte) (list []netip.AddrPort) {
			for _, host := range hosts {
				list = append(list, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, host}), 80))
			}
			return list
		}
		began := make(map[netip.AddrPort]time.Time)
		for _, list := range [][]netip.AddrPort{at(2, 4, 6), at(1, 2, 3, 4, 7), at(2, 7), at(6, 7, 8), at(7)} {
			before := maps.Clone(began)
			n.Set(web, list)
			clear(began)
			for _, e := range n.Endpoints() {
				want, known := before[e.AddrPort]
				if !known {
					want = time.Now()
				}
				if !e.since.Equal(want) {
					t.Errorf("of %v, %s terminates since %s, want %s", list, e.AddrPort, e.since, want)
				}
				began[e.AddrPort] = e.since
			}
			if len(began) != len(list) {
				t.Errorf("%d endpoints of %v", len(began), list)
			}
			time.Sleep(time.Second)
		}
	})
}

// TestNamespaceBound: however many endpoints of however many Services of one namespace terminate, so many are
// counted, and those of others as if these were not there. Who waits for more is told so, until there is room.
// Of those that there is no room for, no more are kept.
func TestNamespaceBound(t *testing.T) {
	const each = policy.MaxTerminating - 1
	in(t, func(t *testing.T, n *node) {
		n.opts.Known = func(model.Name) bool { return true }
		many := make([]netip.AddrPort, each)
		for i := range many {
			many[i] = netip.AddrPortFrom(netip.MustParseAddr("10.0.0.9"), uint16(i+1))
		}
		greedy := func(i int) model.Name { return model.Name{Namespace: "greedy", Name: fmt.Sprint("svc-", i)} }
		for i := range 1000 {
			n.Set(greedy(i), many)
		}
		n.Set(web, []netip.AddrPort{first})
		// Counts are followed by pauses nine times as long as their CPU time, which is not of the test's clock.
		n.ask("web", "").after(t, settleTime+20*interval, http.StatusOK, `{"endpoints":[{"endpoint":"10.0.0.1:8080","connections":0}]}`)
		if all := n.Endpoints(); len(all) != 1+maxOfNamespace/each*each {
			t.Errorf("%d endpoints are counted", len(all))
		}
		if kept := n.namespaces["greedy"].kept; kept != maxOfNamespace/each*each {
			t.Errorf("%d endpoints that are not counted are kept", kept)
		}
		const full = `{"endpoints":[],"error":"more than 4096 endpoints of the namespace terminate, which are not all counted"}`
		n.askOf("greedy", "svc-999").after(t, time.Second, http.StatusServiceUnavailable, full)
		n.Set(greedy(4), many[:5])
		n.askOf("greedy", "svc-4").after(t, time.Second, http.StatusServiceUnavailable, full)
		n.Set(greedy(0), many[:each-1])
		n.askOf("greedy", "svc-4").after(t, settleTime+20*interval, http.StatusOK, `{"endpoints":[`+strings.Join([]string{
			`{"endpoint":"10.0.0.9:1","connections":0}`, `{"endpoint":"10.0.0.9:2","connections":0}`, `{"endpoint":"10.0.0.9:3","connections":0}`,
			`{"endpoint":"10.0.0.9:4","connections":0}`, `{"endpoint":"10.0.0.9:5","connections":0}`}, ",")+`]}`)
		for i := range 1000 {
			n.Set(greedy(i), nil)
		}
		n.Set(web, nil)
		if len(n.services)+len(n.namespaces) > 0 {
			t.Errorf("after all have gone, %d Services and %d namespaces are kept", len(n.services), len(n.namespaces))
		}
	})
}

// TestNamespaceBoundWhileWaiting: when more of a Service terminate than there is room for, who waits goes on
// waiting for those that were counted before, and is told of the others then, if there still is no room; at
// once when none can be counted.
func TestNamespaceBoundWhileWaiting(t *testing.T) {
	in(t, func(t *testing.T, n *node) {
		full := make([]netip.AddrPort, policy.MaxTerminating)
		for i := range full {
			full[i] = netip.AddrPortFrom(netip.MustParseAddr("10.0.0.9"), uint16(i+1))
		}
		other := func(i int) model.Name { return model.Name{Namespace: web.Namespace, Name: fmt.Sprint("other-", i)} }
		for i := range 3 {
			n.Set(other(i), full)
		}
		n.Set(other(3), full[1:])
		n.have(first, 1)
		n.Set(web, []netip.AddrPort{first})
		a := n.ask("web", "")
		a.after(t, time.Minute, 0, "")
		n.Set(web, []netip.AddrPort{first, second})
		a.after(t, time.Minute, 0, "")
		n.have(first, 0)
		a.after(t, 2*time.Second, http.StatusServiceUnavailable, `{"endpoints":[{"endpoint":"10.0.0.1:8080","connections":0}],"error":"more than 4096 endpoints of the namespace terminate, which are not all counted"}`)
		n.have(first, 1)
		time.Sleep(2 * idle)
		a = n.ask("web", "")
		a.after(t, interval, 0, "")
		n.fail(errors.New("on purpose"))
		a.after(t, (maxFailures+1)*time.Second, http.StatusServiceUnavailable, `{"endpoints":[{"endpoint":"10.0.0.1:8080","connections":1}],"error":"connections cannot be counted: on purpose"}`)
		n.fail(nil)
		time.Sleep(2 * idle)
		a = n.ask("web", "")
		a.after(t, interval, 0, "")
		n.Set(other(0), nil)
		a.after(t, time.Minute, 0, "")
		n.have(first, 0)
		a.after(t, 2*time.Second, http.StatusOK, `{"endpoints":[{"endpoint":"10.0.0.1:8080","connections":0},{"endpoint":"[fd00::1]:8080","connections":0}]}`)
	})
}

// TestPlaces: however many requests another host or a pod makes, some of others wait, and those of this
// node.
func TestPlaces(t *testing.T) {
	in(t, func(t *testing.T, n *node) {
		n.have(first, 1)
		n.Set(web, []netip.AddrPort{first})
		refused := func(addr, message string) {
			t.Helper()
			n.askFrom(addr, "web", "").after(t, 0, http.StatusServiceUnavailable, fmt.Sprintf(`{"endpoints":[],"error":"%s wait, which is the most"}`, message))
		}
		var waiting []*answered
		for i := range maxElsewhere / maxClient {
			for j := range maxClient {
				waiting = append(waiting, n.askFrom(fmt.Sprintf("2001:db8:0:%d::%d", i, j), "web", ""))
			}
			synctest.Wait()
			if i == 0 {
				refused("2001:db8::ffff", "16 requests of this client")
			}
		}
		refused("192.0.2.2", "128 requests of pods and other hosts")
		for range maxWaiting - maxElsewhere {
			waiting = append(waiting, n.ask("web", ""))
		}
		for _, a := range waiting {
			a.after(t, 0, 0, "")
		}
		n.have(first, 0)
		for _, a := range waiting {
			a.after(t, settleTime+time.Second, http.StatusOK, `{"endpoints":[{"endpoint":"10.0.0.1:8080","connections":0}]}`)
		}
		if n.waiting+n.elsewhere+len(n.byNetwork) > 0 {
			t.Errorf("after all have been answered, %d, %d and %v wait", n.waiting, n.elsewhere, n.byNetwork)
		}
	})
}

// TestWaitLongest: a request of this node waits without limit, another one for an hour.
func TestWaitLongest(t *testing.T) {
	in(t, func(t *testing.T, n *node) {
		n.have(first, 1)
		n.Set(web, []netip.AddrPort{first})
		const left = `{"endpoints":[{"endpoint":"10.0.0.1:8080","connections":1}],"error":"they have connections still"}`
		here, other, longer := n.ask("web", ""), n.askFrom("192.0.2.2", "web", ""), n.askFrom("192.0.2.2", "web", "?timeout=2h")
		other.after(t, longest-time.Second, 0, "")
		other.after(t, 2*time.Second, http.StatusGatewayTimeout, left)
		longer.after(t, 0, http.StatusGatewayTimeout, left)
		here.after(t, 10*time.Hour, 0, "")
		n.have(first, 0)
		here.after(t, 2*time.Second, http.StatusOK, `{"endpoints":[{"endpoint":"10.0.0.1:8080","connections":0}]}`)
	})
}

// TestWaitEnds: the other ways in which a request is answered.
func TestWaitEnds(t *testing.T) {
	for name, test := range map[string]func(t *testing.T, n *node){
		"no endpoint terminates": func(t *testing.T, n *node) {
			a := n.ask("web", "")
			a.after(t, unseen-time.Second, 0, "")
			a.after(t, 2*time.Second, http.StatusOK, `{"endpoints":[]}`)
		},
		"it is gone": func(t *testing.T, n *node) {
			n.have(first, 1)
			n.Set(web, []netip.AddrPort{first})
			a := n.ask("web", "")
			a.after(t, time.Minute, 0, "")
			n.Set(web, nil)
			a.after(t, 0, http.StatusOK, `{"endpoints":[]}`)
		},
		"no Service": func(t *testing.T, n *node) {
			n.ask("wbe", "").after(t, 0, http.StatusNotFound, `{"endpoints":[],"error":"there is no Service default/wbe"}`)
		},
		"timeout": func(t *testing.T, n *node) {
			n.have(first, 1)
			n.Set(web, []netip.AddrPort{first})
			a := n.ask("web", "?timeout=30s")
			a.after(t, 29*time.Second, 0, "")
			a.after(t, 2*time.Second, http.StatusGatewayTimeout, `{"endpoints":[{"endpoint":"10.0.0.1:8080","connections":1}],"error":"they have connections still"}`)
		},
		"timeout, none terminates": func(t *testing.T, n *node) {
			n.ask("web", "?timeout=1s").after(t, time.Second, http.StatusGatewayTimeout, `{"endpoints":[],"error":"none terminates on this node yet"}`)
		},
		"wrong timeout": func(t *testing.T, n *node) {
			n.ask("web", "?timeout=soon").after(t, 0, http.StatusBadRequest, `{"endpoints":[],"error":"timeout: \"soon\" is no duration, such as 30s"}`)
		},
		"the agent ends": func(t *testing.T, n *node) {
			n.have(first, 1)
			n.Set(web, []netip.AddrPort{first})
			a := n.ask("web", "")
			a.after(t, time.Minute, 0, "")
			n.stop()
			a.after(t, 0, http.StatusServiceUnavailable, `{"endpoints":[{"endpoint":"10.0.0.1:8080","connections":1}],"error":"the agent ends"}`)
		},
		"a count fails": func(t *testing.T, n *node) {
			n.Set(web, []netip.AddrPort{first})
			n.fail(errors.New("on purpose"))
			a := n.ask("web", "")
			a.after(t, (maxFailures-2)*time.Second, 0, "")
			n.fail(nil)
			a.after(t, settleTime, http.StatusOK, `{"endpoints":[{"endpoint":"10.0.0.1:8080","connections":0}]}`)
		},
		"all counts fail": func(t *testing.T, n *node) {
			n.Set(web, []netip.AddrPort{first})
			n.fail(errors.New("on purpose"))
			n.ask("web", "").after(t, (maxFailures+1)*time.Second, http.StatusServiceUnavailable, `{"endpoints":[{"endpoint":"10.0.0.1:8080","connections":0}],"error":"connections cannot be counted: on purpose"}`)
		},
		"too many terminate": func(t *testing.T, n *node) {
			all := make([]netip.AddrPort, policy.MaxTerminating)
			for i := range all {
				all[i] = netip.AddrPortFrom(first.Addr(), uint16(i+1))
			}
			n.Set(web, all)
			n.ask("web", "").after(t, time.Second, http.StatusServiceUnavailable, `{"endpoints":[],"error":"1024 endpoints or more terminate, which are not all counted"}`)
		},
		"too many": func(t *testing.T, n *node) {
			n.have(first, 1)
			n.Set(web, []netip.AddrPort{first})
			var waiting []*answered
			for range maxWaiting {
				waiting = append(waiting, n.ask("web", ""))
			}
			synctest.Wait()
			n.ask("web", "").after(t, 0, http.StatusServiceUnavailable, `{"endpoints":[],"error":"256 requests wait, which is the most"}`)
			n.have(first, 0)
			time.Sleep(settleTime + time.Second)
			for _, a := range waiting {
				a.after(t, 0, http.StatusOK, `{"endpoints":[{"endpoint":"10.0.0.1:8080","connections":0}]}`)
			}
			n.ask("web", "").after(t, 0, http.StatusOK, `{"endpoints":[{"endpoint":"10.0.0.1:8080","connections":0}]}`)
		},
	} {
		t.Run(name, func(t *testing.T) { in(t, test) })
	}
}
