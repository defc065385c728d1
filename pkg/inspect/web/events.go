package web

import (
	"slices"
	"sync"

	"github.com/beeline-lb/beeline/pkg/inspect"
)

// heardRefusals are the refusals that are listened to: of a flood, some.
var heardRefusals = inspect.EventOptions{Kinds: inspect.NotServed, Rate: 20}

// keptEvents is how many events are kept.
const keptEvents = 100

// eventLog has the last events, told while somebody looked.
type eventLog struct {
	mu   sync.Mutex
	err  error           // why there are no new ones
	last []inspect.Event // oldest first
}

func (l *eventLog) begin() { l.end(nil) }

func (l *eventLog) end(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = why
}

func (l *eventLog) hear(e *inspect.Event) {
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
