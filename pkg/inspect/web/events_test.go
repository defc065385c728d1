package web

import (
	"context"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/beeline-lb/beeline/pkg/inspect"
)

// errInterrupted is what a listener of these tests fails with at its end.
var errInterrupted = errors.New("interrupted")

// fakeListener tells what it is given.
type fakeListener struct {
	events      chan *inspect.Event
	interrupted chan struct{}
	closed      chan struct{}
}

func (f *fakeListener) Next() (*inspect.Event, error) {
	select {
	case e := <-f.events:
		if e == nil {
			return nil, errors.New("lost")
		}
		return e, nil
	case <-f.interrupted:
		return nil, errInterrupted
	}
}

func (f *fakeListener) Interrupt() { close(f.interrupted) }

func (f *fakeListener) Close() error { close(f.closed); return nil }

// listens reports whether the listener has been neither interrupted nor closed; it must be both or
// none.
func (f *fakeListener) listens(t *testing.T) bool {
	t.Helper()
	interrupted, closed := ended(f.interrupted), ended(f.closed)
	if interrupted != closed {
		t.Errorf("a listener is interrupted: %t, and closed: %t", interrupted, closed)
	}
	return !interrupted
}

// ended reports whether a channel is closed.
func ended(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// fakeMaps are read and listened to by a page.
type fakeMaps struct {
	readErr, listenErr error
	asked              []inspect.EventOptions // for refusals
	listeners          []*fakeListener
	counting           []*fakeListener // for new connections
}

func (m *fakeMaps) Read() (*inspect.Sample, error) { return new(inspect.Sample), m.readErr }

func (m *fakeMaps) Listen(o inspect.EventOptions) (Listener, error) {
	counts := slices.Equal(o.Kinds, []string{inspect.EventConnection})
	if !counts {
		m.asked = append(m.asked, o)
	}
	if m.listenErr != nil {
		return nil, m.listenErr
	}
	f := &fakeListener{make(chan *inspect.Event), make(chan struct{}), make(chan struct{})}
	if counts {
		m.counting = append(m.counting, f)
		return f, nil
	}
	m.listeners = append(m.listeners, f)
	return f, nil
}

// page returns what answers over the maps, read once in two seconds.
func (m *fakeMaps) page() *reader {
	return newReader(Options{Read: m.Read, Listen: m.Listen, Interval: 2 * time.Second})
}

// look asks for an answer, and returns what it says of events.
func look(t *testing.T, r *reader) ([]inspect.Event, string) {
	t.Helper()
	body, err := r.answer(question{order: inspect.ByName})
	if err != nil {
		t.Fatal(err)
	}
	var a answer
	if err := json.Unmarshal(body, &a); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return a.Refusals.Events, a.Refusals.NotHeard
}

// TestAnswersArePaced: who asks in a loop, for whatever is answered, gets no more answers than a tenth of
// the time is for, and who waits for one may go.
func TestAnswersArePaced(t *testing.T) {
	for _, url := range []string{
		"http://127.0.0.1/", "http://127.0.0.1/top", "http://127.0.0.1/top?sort=size", "http://127.0.0.1/nothing", "http://rebound.example/",
	} {
		synctest.Test(t, func(t *testing.T) {
			m := new(fakeMaps)
			page := New(Options{Read: m.Read, Listen: m.Listen, Interval: 2 * time.Second})
			defer page.Close()
			const answers, atOnce = 500, 100 // of a millisecond each, in a second
			begin := time.Now()
			for i := range answers {
				page.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", url, nil))
				if took := time.Since(begin); i < atOnce/10 && took > 0 {
					t.Fatalf("%s: answer %d took %s", url, i, took)
				}
			}
			if took := time.Since(begin); took < (answers/atOnce-1)*time.Second {
				t.Errorf("%s: %d answers in %s", url, answers, took)
			}
		})
	}
}

// TestBudget: an answer that costs much is paid by the periods after it, and who waits may go.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b budget
		begin := time.Now()
		if !b.take(t.Context()) || time.Since(begin) > 0 {
			t.Errorf("the first answer waits for %s", time.Since(begin))
		}
		b.spend(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if b.take(ctx) {
			t.Error("who has gone gets an answer")
		}
		if !b.take(t.Context()) || time.Since(begin) != 10*time.Second {
			t.Errorf("after an answer of a second the next one waits for %s", time.Since(begin))
		}
		b.spend(time.Second)
		time.Sleep(time.Minute)
		begin = time.Now()
		if !b.take(t.Context()) || time.Since(begin) > 0 {
			t.Errorf("when a minute has paid, the next one waits for %s", time.Since(begin))
		}
	})
}

// TestListensWhileLookedAt: the page listens as long as somebody looks, two intervals longer, and
// not when it is closed, whoever asks then.
func TestListensWhileLookedAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := new(fakeMaps)
		r := m.page()
		if time.Sleep(time.Hour); len(m.asked) > 0 {
			t.Fatal("it listens before anybody looks")
		}
		for range 10 { // each within two intervals of the next reading
			look(t, r)
			time.Sleep(5 * time.Second)
		}
		if len(m.asked) != 1 || !m.listeners[0].listens(t) || len(m.counting) != 1 || !m.counting[0].listens(t) || m.asked[0].Rate != 20 ||
			!slices.Equal(m.asked[0].Kinds, []string{inspect.EventRefused, inspect.EventDropped}) {
			t.Fatalf("while somebody looks it has listened %d times: %+v", len(m.asked), m.asked)
		}
		time.Sleep(time.Second + time.Millisecond)
		synctest.Wait()
		if m.listeners[0].listens(t) || m.counting[0].listens(t) {
			t.Error("it listens three intervals after the last reading")
		}
		look(t, r)
		if len(m.listeners) != 2 || !m.listeners[1].listens(t) || !m.counting[1].listens(t) {
			t.Fatalf("somebody looks again: it has listened %d times", len(m.listeners))
		}
		r.close()
		time.Sleep(time.Minute)
		if look(t, r); len(m.listeners) != 2 || m.listeners[1].listens(t) || len(m.counting) != 2 || m.counting[1].listens(t) {
			t.Error("it listens when it is closed")
		}
	})
}

// TestEventsAreBounded: the last events are shown, the latest first, and kept while nobody looks.
func TestEventsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := new(fakeMaps)
		r := m.page()
		if events, notHeard := look(t, r); events == nil || len(events) > 0 || notHeard != "" {
			t.Errorf("at first: %v, %q", events, notHeard)
		}
		for pid := range uint32(1000) {
			m.listeners[0].events <- &inspect.Event{Kind: inspect.EventRefused, PID: pid}
		}
		time.Sleep(time.Hour)
		events, _ := look(t, r)
		if len(events) != mostEvents || events[0].PID != 999 || events[mostEvents-1].PID != 980 || len(r.events.last) != keptEvents {
			t.Errorf("%d events shown of %d kept: %+v", len(events), len(r.events.last), events)
		}
		r.close()
	})
}

// TestNotHeard: the page says why it knows no events, tries again at the next reading, and does
// not hold on to maps that cannot be read any more.
func TestNotHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &fakeMaps{listenErr: errors.New("no place")}
		r := m.page()
		for range 3 {
			if _, notHeard := look(t, r); notHeard != "no place" || len(m.asked) != 1 {
				t.Errorf("it says %q after listening %d times", notHeard, len(m.asked))
			}
		}
		m.listenErr = nil
		time.Sleep(2 * time.Second)
		if _, notHeard := look(t, r); notHeard != "" || !m.listeners[0].listens(t) {
			t.Errorf("there is a place: it says %q", notHeard)
		}
		m.listeners[0].events <- nil
		synctest.Wait()
		if _, notHeard := look(t, r); notHeard != "lost" {
			t.Errorf("the place is lost: it says %q", notHeard)
		}
		time.Sleep(2 * time.Second)
		if _, notHeard := look(t, r); notHeard != "" || !m.listeners[1].listens(t) {
			t.Errorf("it has a place again: it says %q", notHeard)
		}
		m.readErr = errors.New("no datapath")
		time.Sleep(2 * time.Second)
		if _, err := r.answer(question{}); err != m.readErr {
			t.Errorf("no maps: %v", err)
		}
		if synctest.Wait(); m.listeners[1].listens(t) || m.counting[0].listens(t) {
			t.Error("it listens to maps that are gone")
		}
		r.close()
	})
}
