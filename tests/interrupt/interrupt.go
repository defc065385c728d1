// Package interrupt names the signals at which programs of tests and tools tidy up before they end. It
// depends on no other package of Beeline.
package interrupt

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// Signals returns those of Ctrl-C, of kill, and of a terminal that is gone, but for a program that
// nohup has started.
func Signals() []os.Signal {
	signals := []os.Signal{unix.SIGINT, unix.SIGTERM}
	if !signal.Ignored(unix.SIGHUP) {
		signals = append(signals, unix.SIGHUP)
	}
	return signals
}
