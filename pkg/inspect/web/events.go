package web

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/beeline-lb/beeline/pkg/inspect"
)

// heardEvents are the events that are listened to: of a flood, some.
var heardEvents = inspect.EventOptions{Kinds: inspect.NotServed, Rate: 20}

// keptEvents is how many events are kept.
const keptEvents = 100

// Listener listens to events, as [inspect.Monitor] does.
type Listener interface {
	// Next waits for an event. It fails after Interrupt.
	Next() (*inspect.Event, error)
	Interrupt()
	Close() error
}

// eventLog has the last events, told while somebody looked.
type eventLog struct {
	listen func(inspect.EventOptions) (Listener, error)

	mu       sync.Mutex
	listener Listener        // nil: none
	err      error           // why there is none, when there should be
	until    time.Time       // when it is to end
	timer    *time.Timer     // ends it
	closed   bool            // there will be none
	last     []inspect.Event // oldest first
	readers  sync.WaitGroup
}

// follow listens until a time, which the next call puts off.
func (l *eventLog) follow(until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.until = until
	if l.timer == nil {
		l.timer = time.AfterFunc(time.Until(until), l.expire)
	} else {
		l.timer.Reset(time.Until(until))
	}
	if l.listener != nil {
		return
	}
	var listener Listener
	if listener, l.err = l.listen(heardEvents); l.err != nil {
		return
	}
	l.listener = listener
	l.readers.Go(func() { l.read(listener) })
}

// expire ends listening unless that was put off meanwhile.
func (l *eventLog) expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !time.Now().Before(l.until) {
		l.interrupt()
	}
}

// pause ends listening until the next call of follow.
func (l *eventLog) pause() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.interrupt()
}

// close ends listening for good, and returns when it has ended.
func (l *eventLog) close() {
	l.mu.Lock()
	l.closed = true
	l.interrupt()
	if l.timer != nil {
		l.timer.Stop()
	}
	l.mu.Unlock()
	l.readers.Wait()
}

// interrupt ends listening; l.mu is held.
func (l *eventLog) interrupt() {
	if l.listener != nil {
		l.listener.Interrupt()
		l.listener = nil
	}
}

// read keeps what a listener is told until it fails or is interrupted.
func (l *eventLog) read(listener Listener) {
	for {
		e, err := listener.Next()
		if err != nil {
			l.end(listener, errors.Join(err, listener.Close()))
			return
		}
		l.add(e)
	}
}

// end notes why a listener has ended that was to go on.
func (l *eventLog) end(listener Listener, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.listener == listener {
		l.listener, l.err = nil, err
	}
}

func (l *eventLog) add(e *inspect.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.last) == keptEvents {
		l.last = l.last[:copy(l.last, l.last[1:])]
	}
	l.last = append(l.last, *e)
}

// view returns the last events, the latest first, and why there are no new ones.
func (l *eventLog) view() (events []inspect.Event, notHeard string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	events = append([]inspect.Event{}, l.last[max(0, len(l.last)-mostEvents):]...)
	slices.Reverse(events)
	if l.err != nil {
		notHeard = l.err.Error()
	}
	return events, notHeard
}
