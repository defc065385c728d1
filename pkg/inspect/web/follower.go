package web

import (
	"errors"
	"sync"
	"time"

	"github.com/beeline-lb/beeline/pkg/inspect"
)

// Listener listens to events, as [inspect.Monitor] does.
type Listener interface {
	// Next waits for an event. It fails after Interrupt.
	Next() (*inspect.Event, error)
	Interrupt()
	Close() error
}

// hearer takes what is told. Its methods may run beside those of who reads it.
type hearer interface {
	begin() // listening begins
	hear(*inspect.Event)
	end(why error) // nobody listens who should, also when listening could not begin
}

// follower listens while somebody looks.
type follower struct {
	listen  func(inspect.EventOptions) (Listener, error)
	options inspect.EventOptions
	hearer  hearer

	mu       sync.Mutex
	listener Listener    // nil: none
	until    time.Time   // when it is to end
	timer    *time.Timer // ends it
	closed   bool        // there will be none
	readers  sync.WaitGroup
}

// follow listens until a time, which the next call puts off.
func (f *follower) follow(until time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	f.until = until
	if f.timer == nil {
		f.timer = time.AfterFunc(time.Until(until), f.expire)
	} else {
		f.timer.Reset(time.Until(until))
	}
	if f.listener != nil {
		return
	}
	listener, err := f.listen(f.options)
	if err != nil {
		f.hearer.end(err)
		return
	}
	f.hearer.begin()
	f.listener = listener
	f.readers.Go(func() { f.read(listener) })
}

// expire ends listening unless that was put off meanwhile.
func (f *follower) expire() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !time.Now().Before(f.until) {
		f.interrupt()
	}
}

// pause ends listening until the next call of follow.
func (f *follower) pause() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.interrupt()
}

// close ends listening for good, and returns when it has ended.
func (f *follower) close() {
	f.mu.Lock()
	f.closed = true
	f.interrupt()
	if f.timer != nil {
		f.timer.Stop()
	}
	f.mu.Unlock()
	f.readers.Wait()
}

// interrupt ends listening; f.mu is held.
func (f *follower) interrupt() {
	if f.listener != nil {
		f.listener.Interrupt()
		f.listener = nil
	}
}

// read passes on what a listener is told until it fails or is interrupted.
func (f *follower) read(listener Listener) {
	for {
		e, err := listener.Next()
		if err != nil {
			f.end(listener, errors.Join(err, listener.Close()))
			return
		}
		f.hearer.hear(e)
	}
}

// end notes why a listener has ended that was to go on.
func (f *follower) end(listener Listener, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.listener == listener {
		f.listener = nil
		f.hearer.end(err)
	}
}
