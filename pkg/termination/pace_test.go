package termination

import (
	"context"
	"net/netip"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/netns"
)

// TestCountsTakeATenth: a count is followed by a pause nine times as long as it worked, wherever: it does in
// each network namespace, on other threads.
func TestCountsTakeATenth(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to enter network namespaces")
	}
	const work = 50 * time.Millisecond
	own, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var begun []time.Time
		var w *Watcher
		w = New(Options{
			Known: func(model.Name) bool { return true },
			Count: func([]netip.AddrPort) (map[netip.AddrPort]int, error) {
				if begun = append(begun, time.Now()); len(begun) == 3 {
					cancel()
				}
				w.countNow() // the next follows the pause
				return nil, own.Run(func() error {
					var start, now unix.Timespec
					if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &start); err != nil {
						return err
					}
					for now = start; now.Nano()-start.Nano() < int64(work); {
						if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
							return err
						}
					}
					return nil
				})
			},
		})
		w.Set(web, []netip.AddrPort{first})
		w.Run(ctx)
		for i := range begun[1:] {
			if next := begun[i+1].Sub(begun[i]); next < rest*work {
				t.Errorf("a count that works for %v is followed by the next after %v, want %v", work, next, rest*work)
			}
		}
	})
}
