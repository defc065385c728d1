package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/client-go/rest"

	"github.com/beeline-lb/beeline/pkg/event"
	"github.com/beeline-lb/beeline/pkg/model"
)

// eventServer answers requests for events, in memory: a connection would stop the clock of
// [synctest].
type eventServer struct {
	mu      sync.Mutex
	away    bool
	broken  int // the status of each answer; 0: none
	events  map[string]*eventsv1.Event
	asked   []time.Time
	patches int
}

// eventsPath is the path of an event: namespace, name.
var eventsPath = regexp.MustCompile(`^.*/namespaces/(.*)/events/(.*)$`)

func (s *eventServer) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, time.Now())
	if s.away {
		return nil, errors.New("connection refused")
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	status := func(code int, reason string) (*http.Response, error) {
		text := fmt.Sprintf(`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": %q, "code": %d}`, reason, code)
		return s.response(r, code, []byte(text)), nil
	}
	if s.broken != 0 {
		return status(s.broken, "")
	}
	if r.Method == http.MethodPatch {
		e := s.events[eventsPath.ReplaceAllString(r.URL.Path, "$1/$2")]
		if e == nil {
			return status(http.StatusNotFound, "NotFound")
		}
		s.patches++
		return s.response(r, http.StatusOK, []byte(`{"kind": "Event", "apiVersion": "events.k8s.io/v1"}`)), json.Unmarshal(body, e)
	}
	var e eventsv1.Event
	if err := json.Unmarshal(body, &e); err != nil {
		return nil, err
	}
	if s.events[keyOf(&e)] != nil {
		return status(http.StatusConflict, "AlreadyExists")
	}
	s.events[keyOf(&e)] = &e
	return s.response(r, http.StatusCreated, body), nil
}

func (s *eventServer) response(r *http.Request, code int, body []byte) *http.Response {
	return &http.Response{
		StatusCode: code, Request: r, Body: io.NopCloser(bytes.NewReader(body)),
		Header: http.Header{"Content-Type": {"application/json"}},
	}
}

// only returns the one event that the server has.
func (s *eventServer) only(t *testing.T) *eventsv1.Event {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.events) != 1 {
		t.Fatalf("the server has %d events, want one", len(s.events))
	}
	for _, e := range s.events {
		return e
	}
	return nil
}

// made returns how many events there are in each namespace.
func (s *eventServer) made() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := make(map[string]int)
	for _, e := range s.events {
		counts[e.Namespace]++
	}
	return counts
}

// requests returns when each request came.
func (s *eventServer) requests() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

// nodes returns recorders of nodes that send until the test ends.
func (s *eventServer) nodes(t *testing.T, n int) (list []*recorder) {
	t.Helper()
	s.events = make(map[string]*eventsv1.Event)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	for i := range n {
		c, err := newClients(Options{Config: &rest.Config{Host: "http://server", Transport: s}, ContentType: "application/json"})
		must(t, err)
		r := newRecorder(c.events, fmt.Sprint("node-", i), 0, nil)
		running.Go(func() { r.run(ctx) })
		list = append(list, r)
	}
	return list
}

func wrong(what string) event.Event {
	return event.Event{
		Service: model.Name{Namespace: "shop", Name: "web"}, Type: event.Warning,
		Reason: event.InvalidSetting, Action: "ReadAnnotations", Fault: what, Note: what,
	}
}

// TestOneEventOfAllNodes: what all nodes see at once is one event, for which they ask over
// a minute.
func TestOneEventOfAllNodes(t *testing.T) {
	const count = 600
	synctest.Test(t, func(t *testing.T) {
		var s eventServer
		begin := time.Now()
		for _, r := range s.nodes(t, count) {
			r.record(wrong("a"))
			r.record(wrong("a"))
		}
		time.Sleep(time.Minute + time.Second)
		s.only(t)
		if len(s.requests()) != count+1 && len(s.requests()) != count {
			t.Errorf("%d nodes made %d requests", count, len(s.requests()))
		}
		perSecond := make(map[int]int)
		for _, at := range s.requests() {
			perSecond[int(at.Sub(begin)/time.Second)]++
		}
		for second, n := range perSecond {
			if n > count/60*4 || second > 60 {
				t.Errorf("%d requests in second %d", n, second)
			}
		}
	})
}

// TestRepeatedFault: whose event it is counts how often the same came again, in one request
// for many times; the others say nothing.
func TestRepeatedFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s eventServer
		nodes := s.nodes(t, 20)
		again := func() {
			for _, r := range nodes {
				r.record(wrong("a"))
			}
		}
		again()
		time.Sleep(2 * time.Minute)
		before := len(s.requests())
		for range 10 { // at one time: a repetition may be due after any part of the minute
			again()
		}
		time.Sleep(2 * time.Minute)
		if got := s.only(t); got.Series == nil || got.Series.Count != 11 {
			t.Errorf("the series is %+v, want 11 times", got.Series)
		}
		if n := len(s.requests()) - before; n != 1 || s.patches != 1 {
			t.Errorf("%d requests, %d of them patches; want one", n, s.patches)
		}
		clear(s.events) // the server has forgotten it
		again()
		time.Sleep(2 * time.Minute)
		if got := s.only(t); got.Series != nil {
			t.Errorf("the new event has the series %+v", got.Series)
		}
		time.Sleep(eventLife)
		clear(s.events)
		again()
		time.Sleep(2 * time.Minute)
		s.only(t)
	})
}

// TestEventsAreBounded: who makes ever new faults has no more than a queue of them sent, and
// takes the place of nobody else in it.
func TestEventsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s eventServer
		var waits []bool
		r := s.nodes(t, 1)[0]
		r.mu.Lock()
		r.wait = func(w bool) { waits = append(waits, w) }
		r.mu.Unlock()
		of := func(namespace string, n int) {
			for i := range n {
				e := wrong(fmt.Sprint(i))
				e.Service.Namespace = namespace
				r.record(e)
			}
		}
		of("aaa", 3*maxWaitingEvents)
		of("shop", 3)
		of("aaa", 3*maxWaitingEvents)
		time.Sleep(10 * time.Minute) // client-go limits the rate
		if made := s.made(); made["shop"] != 3 || made["aaa"] != maxWaitingEvents-3 {
			t.Errorf("%v events, want 3 in shop and %d in all", made, maxWaitingEvents)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if !waits[0] || waits[len(waits)-1] {
			t.Errorf("told %t at first and %t at last that events wait", waits[0], waits[len(waits)-1])
		}
	})
}

// TestEventOfTheLastValue: who edits an annotation again and again has one event made in each
// minute, of the value that counts.
func TestEventOfTheLastValue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s eventServer
		r := s.nodes(t, 1)[0]
		for i := range 1000 {
			e := wrong(fmt.Sprint("value ", i))
			e.Subject = "annotation"
			r.record(e)
		}
		time.Sleep(2 * time.Minute)
		if got := s.only(t); got.Note != "value 999" || len(s.requests()) != 1 {
			t.Errorf("the event says %q after %d requests", got.Note, len(s.requests()))
		}
	})
}

// TestFoundEventsAreAskedForSeldom: however many faults a tenant makes, nodes that find the events there
// leave them to others. Each is made all the same.
func TestFoundEventsAreAskedForSeldom(t *testing.T) {
	const count, faults, minutes = 100, 500, 60
	synctest.Test(t, func(t *testing.T) {
		var s eventServer
		for _, r := range s.nodes(t, count) {
			for i := range faults {
				r.record(wrong(fmt.Sprint(i)))
			}
		}
		time.Sleep(minutes * time.Minute)
		// Pauses of 1, 2, 4 … 32 s come before those of a minute; a node that makes one begins anew.
		made, asked, most := s.made()["shop"], len(s.requests()), 8*faults+count*(minutes+6)
		if made != faults || asked > most {
			t.Errorf("%d nodes made %d of %d events by %d requests, want %d at most", count, made, faults, asked, most)
		}
	})
}

// TestEventOfBrokenServer: an answer that says nothing about the event makes the node ask
// again, seldom, whatever waits.
func TestEventOfBrokenServer(t *testing.T) {
	for _, code := range []int{http.StatusUnauthorized, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusServiceUnavailable, http.StatusGatewayTimeout} {
		synctest.Test(t, func(t *testing.T) {
			s := eventServer{broken: code}
			r := s.nodes(t, 1)[0]
			for i := range 50 {
				r.record(wrong(fmt.Sprint(i)))
			}
			time.Sleep(10 * time.Minute)
			if n := len(s.requests()); n > 65 {
				t.Errorf("%d: %d requests in ten minutes", code, n)
			}
			s.mu.Lock()
			s.broken = 0
			s.mu.Unlock()
			time.Sleep(time.Minute)
			if made := s.made()["shop"]; made != 50 {
				t.Errorf("%d: %d events are made afterwards, want 50", code, made)
			}
		})
	}
}

// TestRejectedEvent: what the server does not want is lost, and nothing waits for it.
func TestRejectedEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := eventServer{broken: http.StatusForbidden}
		s.nodes(t, 1)[0].record(wrong("a"))
		time.Sleep(10 * time.Minute)
		if n := len(s.requests()); n != 1 {
			t.Errorf("%d requests, want one", n)
		}
	})
}

// TestEventWaitsForTheServer: an event is sent when the server is back; one of the node goes
// at once.
func TestEventWaitsForTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s eventServer
		r := s.nodes(t, 1)[0]
		s.away = true
		r.record(event.Event{Type: event.Normal, Reason: event.Starting, Action: "Start", Note: "x"})
		time.Sleep(time.Millisecond)
		if len(s.requests()) != 1 {
			t.Fatalf("%d requests at once, want one", len(s.requests()))
		}
		time.Sleep(5 * time.Minute)
		s.mu.Lock()
		s.away = false
		s.mu.Unlock()
		time.Sleep(eventRetry + time.Second)
		if got := s.only(t); got.Regarding.Kind != "Node" || got.Regarding.Name != "node-0" {
			t.Errorf("the event is about %+v", got.Regarding)
		}
	})
}
