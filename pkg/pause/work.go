package pause

import (
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// elsewhere has the CPU time that calls of Work have taken on other threads so far, by the id of the calling
// thread, which is theirs alone.
var elsewhere sync.Map // of *time.Duration

// Work calls f and returns the CPU time that it took on the calling thread, and by [Elsewhere]. What f waits for does
// not count, and neither does what others take from a busy machine meanwhile: a pause in proportion
// would be long when the machine is busy, not when the work is much.
func Work(f func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread := unix.Gettid()
	outer, nested := elsewhere.Load(thread)
	var others time.Duration
	elsewhere.Store(thread, &others)
	start := threadTime()
	f()
	took := threadTime() - start + others
	if nested {
		*outer.(*time.Duration) += others
		elsewhere.Store(thread, outer)
	} else {
		elsewhere.Delete(thread)
	}
	return took
}

// Elsewhere calls f on another thread and returns when it has ended. In [Work], its CPU time counts as if the
// calling thread had taken it. A thread that f has locked ends.
func Elsewhere(f func()) {
	done := make(chan time.Duration)
	go func() { done <- Work(f) }()
	took := <-done
	if others, ok := elsewhere.Load(unix.Gettid()); ok {
		*others.(*time.Duration) += took
	}
}

// Laps measures the work of a loop: each call of lap returns the CPU time that this goroutine took
// since the one before, as [Work] counts it. The goroutine keeps its thread until end is called.
func Laps() (lap func() time.Duration, end func()) {
	runtime.LockOSThread()
	last := threadTime()
	return func() time.Duration {
		now := threadTime()
		took := now - last
		last = now
		return took
	}, runtime.UnlockOSThread
}

// threadTime returns the CPU time of the calling thread.
func threadTime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		panic(fmt.Sprintf("read the thread's clock: %v", err)) // every Linux has it
	}
	return time.Duration(now.Nano())
}
