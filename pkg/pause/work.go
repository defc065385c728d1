package pause

import (
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Work calls f and returns the CPU time that it took on the calling thread. What f waits for does
// not count, and neither does what others take from a busy machine meanwhile: a pause in proportion
// would be long when the machine is busy, not when the work is much.
func Work(f func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	start := threadTime()
	f()
	return threadTime() - start
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
