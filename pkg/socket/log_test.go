package socket

import (
	"bytes"
	"context"
	"flag"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"

	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/bpf"
)

// TestLog: at --v=2 a search that destroys nothing is not logged, the one that destroys a
// socket is.
func TestLog(t *testing.T) {
	needRoot(t)
	local := connectedSocket(t)
	written := logAt2(t)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		searches := 0
		var d *Destroyer
		d = New(Options{
			Service: func(s bpf.UDPSocket) (uint32, bool, error) { return 7, s.Local == local, nil },
			Serves:  func(uint32, netip.AddrPort) bool { return searches < 2 },
			Destroyed: func(sockets int) {
				if searches++; searches == 4 {
					cancel()
				}
				if (sockets == 1) != (searches == 3) {
					t.Errorf("search %d destroyed %d sockets", searches, sockets)
				}
				d.Wake()
			},
		})
		d.Wake()
		d.Run(ctx)
	})
	klog.Flush()
	if lines := strings.SplitAfter(written.String(), "\n"); len(lines) != 2 || !strings.Contains(lines[0], "destroyed=1") {
		t.Errorf("four searches, of which the third destroyed a socket, are logged as\n%s", written)
	}
}

// logAt2 returns what is logged at --v=2 until the test ends.
func logAt2(t *testing.T) *bytes.Buffer {
	t.Helper()
	flags := flag.NewFlagSet("", flag.PanicOnError)
	klog.InitFlags(flags)
	set := func(name, value string) {
		if err := flags.Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
	written := new(bytes.Buffer)
	state := klog.CaptureState()
	t.Cleanup(state.Restore)
	set("v", "2")
	set("logtostderr", "false")
	klog.SetOutput(written)
	return written
}
