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

// threadTime returns the CPU time of the calling thread.
func threadTime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		panic(fmt.Sprintf("read the thread's clock: %v", err)) // every Linux has it
	}
	return time.Duration(now.Nano())
}
