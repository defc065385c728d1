package socket

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/beeline-lb/beeline/pkg/bpf"
)

// TestSearchesTakeATenth: however long searches take, and however often endpoints go, from the
// beginning of one to that of the next it takes ten times as long, and an interval at least; but
// nobody waits for longer than retry, who is on a node where a search waits for CPUs.
func TestSearchesTakeATenth(t *testing.T) {
	needRoot(t)
	local := connectedSocket(t)
	synctest.Test(t, func(t *testing.T) {
		lengths := []time.Duration{0, interval / rest, time.Second, time.Minute, 0}
		var begun, ended []time.Time // searches
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var d *Destroyer
		d = New(Options{
			Service: func(s bpf.UDPSocket) (uint32, bool, error) {
				if s.Local == local && len(begun) == len(ended) {
					begun = append(begun, time.Now())
					time.Sleep(lengths[len(ended)])
				}
				return 0, false, nil
			},
			Destroyed: func(int) {
				ended = append(ended, time.Now())
				if d.Wake(); len(ended) == len(lengths) {
					cancel()
				}
			},
		})
		d.Wake()
		d.Run(ctx)
		if len(begun) != len(lengths) || len(ended) != len(lengths) {
			t.Fatalf("%d searches began and %d ended, want %d", len(begun), len(ended), len(lengths))
		}
		for i := range begun[1:] {
			took, next := ended[i].Sub(begun[i]), begun[i+1].Sub(begun[i])
			if want := min(max(10*took, interval), took+retry); next < want || next > want+interval+settle {
				t.Errorf("a search of %v is followed by the next %v after it has begun, want %v", took, next, want)
			}
		}
	})
}
