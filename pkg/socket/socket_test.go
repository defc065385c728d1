package socket

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/beeline-lb/beeline/pkg/bpf"
)

// The main thread runs no test: one that has joined a namespace must be able to end.
func init() { runtime.LockOSThread() }

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to enter network namespaces")
	}
}

// TestSupported: the kernels that tests run in can destroy sockets.
func TestSupported(t *testing.T) {
	needRoot(t)
	if err := Supported(); err != nil {
		t.Error(err)
	}
}

// connectedSocket makes a socket of this process, connected to 127.0.0.1:9, and returns its
// address. It is closed when the test ends.
func connectedSocket(t *testing.T) netip.AddrPort {
	t.Helper()
	own, err := net.Dial("udp4", "127.0.0.1:9")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { own.Close() })
	return own.LocalAddr().(*net.UDPAddr).AddrPort()
}

// TestRun: wakes are one search and another one later, as after one that failed.
func TestRun(t *testing.T) {
	needRoot(t)
	local := connectedSocket(t)
	synctest.Test(t, func(t *testing.T) {
		var asked, searches atomic.Int32
		e := New(Options{
			Service: func(s bpf.UDPSocket) (uint32, bool, error) {
				if s.Local != local {
					return 0, false, nil
				}
				if want := netip.MustParseAddrPort("127.0.0.1:9"); s.Peer != want {
					t.Errorf("the peer is %s, want %s", s.Peer, want)
				}
				if asked.Add(1) == 1 {
					return 0, false, errors.New("asked for")
				}
				return 7, true, nil
			},
			Serves: func(service uint32, _ netip.AddrPort) bool { return service == 7 },
			Destroyed: func(sockets int) {
				searches.Add(1)
				if sockets != 0 {
					t.Errorf("%d sockets are destroyed", sockets)
				}
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go e.Run(ctx)
		for range 3 {
			e.Wake()
			synctest.Wait() // the first is taken
		}
		time.Sleep(retry / 2)
		if asked.Load() != 1 || searches.Load() != 1 {
			t.Errorf("asked %d times in %d searches, want once", asked.Load(), searches.Load())
		}
		time.Sleep(3 * retry)
		if asked.Load() != 2 || searches.Load() != 2 {
			t.Errorf("asked %d times in %d searches, want twice", asked.Load(), searches.Load())
		}
		e.Wake()
		time.Sleep(3 * retry)
		if asked.Load() != 4 || searches.Load() != 4 {
			t.Errorf("asked %d times in %d searches, want two more", asked.Load(), searches.Load())
		}
	})
}

// TestOddSockets: sockets of which the Service is not known keep none from being destroyed.
func TestOddSockets(t *testing.T) {
	needRoot(t)
	odd := make(map[netip.AddrPort]bool)
	for range 8 {
		odd[connectedSocket(t)] = true
	}
	local := connectedSocket(t)
	e := New(Options{
		Service: func(s bpf.UDPSocket) (uint32, bool, error) {
			if odd[s.Local] {
				return 0, false, errors.New("not known")
			}
			return 7, s.Local == local, nil
		},
		Serves: func(uint32, netip.AddrPort) bool { return false },
	})
	if destroyed, err := e.Search(); destroyed != 1 || err == nil || strings.Count(err.Error(), "not known") != someErrors {
		t.Errorf("%d sockets are destroyed, and the error is %v; want one, and %d of the errors", destroyed, err, someErrors)
	}
}
