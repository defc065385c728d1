package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// burnArg makes this program keep a processor busy, for as large a part of the time as the
// argument after it says.
const burnArg = "burn"

// period is how often a process that burns a part of the time does so.
const period = 10 * time.Millisecond

// burn never returns.
func burn(part string) {
	share, err := strconv.ParseFloat(part, 64)
	if err != nil {
		os.Exit(2)
	}
	for {
		start := time.Now()
		for busy := time.Duration(share * float64(period)); time.Since(start) < busy; {
		}
		time.Sleep(period - time.Since(start))
	}
}

// startLoad keeps processors busy until stop is called. The processes do not outlive this
// one.
func startLoad(processors float64) (stop func(), err error) {
	var burners []*exec.Cmd
	runtime.LockOSThread() // the parent death signal is that of the thread
	stop = func() {
		for _, b := range burners {
			_ = b.Process.Kill()
			_ = b.Wait() // was killed
		}
		burners = nil
		runtime.UnlockOSThread()
	}
	for left := processors; left > 0; left-- {
		b := exec.Command("/proc/self/exe", burnArg, fmt.Sprint(min(left, 1)))
		b.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
		if err := b.Start(); err != nil {
			stop()
			return nil, err
		}
		burners = append(burners, b)
	}
	return stop, nil
}
