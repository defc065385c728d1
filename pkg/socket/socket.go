// Package socket destroys connected UDP sockets whose endpoint is gone, or does not serve the
// Service to which the address leads by now that they asked for, so that their processes
// connect anew and get another one, and counts the TCP connections of endpoints of this host.
//
// A connected UDP socket sends to its endpoint without a program running, and nothing answers
// for an endpoint that is gone. The kernel lists connected sockets by network namespace
// (sock_diag); a BPF program says which of them a Service has connected to its endpoint. So a
// socket that a process has itself connected to the endpoint stays as it is. TCP needs none of
// this: the other end, or its node, resets the connection.
package socket

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/netns"
	"github.com/beeline-lb/beeline/pkg/pause"
)

const (
	// settle is how long to wait for more endpoints to go, and for programs that have
	// chosen one of them to connect its socket.
	settle = 100 * time.Millisecond
	// interval is the shortest time between the end of a search and the next.
	interval = time.Second
	// rest is how many times as long as it worked a search pauses, so it takes a tenth of a
	// CPU at most. It pauses for no longer than retry: on a busy node a search waits for CPUs.
	rest = 9
	// retry is when to search once more after endpoints have gone, or after a search that
	// failed in part: a program may have chosen one of them, and its thread been stopped
	// before the socket was connected.
	retry = 30 * time.Second
)

// Options configure a [Destroyer].
type Options struct {
	// Service returns the id of the Service that the peer of a socket of the calling
	// thread's network namespace is to serve: the one that has led it there, or to which the
	// same address leads by now; false: none has.
	Service func(bpf.UDPSocket) (uint32, bool, error)
	// Serves reports whether an endpoint serves the Service of an id.
	Serves func(service uint32, endpoint netip.AddrPort) bool
	// Destroyed, unless nil, gets the number of sockets destroyed after each search.
	Destroyed func(int)
}

// Destroyer destroys sockets (SOCK_DESTROY). Make one with [New].
type Destroyer struct {
	opts Options
	wake chan struct{}
}

// New returns a Destroyer, which does nothing before Run.
func New(o Options) *Destroyer {
	return &Destroyer{opts: o, wake: make(chan struct{}, 1)}
}

// Wake says that endpoints have gone, or addresses to other Services. It does not wait.
func (d *Destroyer) Wake() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// Run searches all network namespaces after each Wake, and once more, until ctx ends.
func (d *Destroyer) Run(ctx context.Context) {
	var again <-chan time.Time
	for {
		woken := false
		select {
		case <-ctx.Done():
			return
		case <-d.wake:
			woken = true
		case <-again:
		}
		if !pause.For(ctx, settle) {
			return
		}
		select {
		case <-d.wake: // the search finds what has gone until now
			woken = true
		default:
		}
		start := time.Now()
		destroyed, err := d.Search()
		took := time.Since(start)
		if d.opts.Destroyed != nil {
			d.opts.Destroyed(destroyed)
		}
		klog.V(searchLevel(destroyed)).InfoS("Searched for UDP sockets whose endpoint is gone", "destroyed", destroyed, "took", took)
		if err != nil {
			klog.ErrorS(err, "UDP sockets whose endpoint is gone could not all be destroyed; trying again", "in", retry)
		}
		again = nil
		if woken || err != nil {
			again = time.After(retry)
		}
		if !pause.For(ctx, min(max(interval, rest*took), retry)) {
			return
		}
	}
}

// searchLevel returns the level that a search is logged at: most searches find nothing.
func searchLevel(destroyed int) klog.Level {
	if destroyed > 0 {
		return 2
	}
	return 4
}

// Search destroys the sockets whose endpoint is gone now and returns how many those were. An
// error in one network namespace keeps it from no other.
func (d *Destroyer) Search() (destroyed int, err error) {
	err = netns.Each(func() error {
		var errs []error
		for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
			n, err := d.destroyFamily(family)
			destroyed += n
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
	return destroyed, err
}

// someErrors is how many errors of single sockets a search returns: there may be as many as sockets.
const someErrors = 4

// destroyFamily destroys sockets of one family in the calling thread's network namespace. An error of one
// socket keeps it from no other.
func (d *Destroyer) destroyFamily(family uint8) (destroyed int, err error) {
	sockets, err := list(family)
	if err != nil {
		return 0, err
	}
	var errs []error
	for i := range sockets {
		gone, err := d.gone(sockets[i].socket())
		if gone {
			err = sockets[i].destroy()
		}
		switch {
		case errors.Is(err, unix.ENOENT):
		case err != nil && len(errs) < someErrors:
			errs = append(errs, err)
		case gone && err == nil:
			destroyed++
		}
	}
	return destroyed, errors.Join(errs...)
}

// gone reports whether a Service has led the socket to an endpoint that does not serve it
// any more.
func (d *Destroyer) gone(s bpf.UDPSocket) (bool, error) {
	service, ok, err := d.opts.Service(s)
	if err != nil || !ok {
		return false, err
	}
	return !d.opts.Serves(service, s.Peer), nil
}

// Supported returns an error unless the kernel destroys a UDP socket that is made for this.
func Supported() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make a UDP socket: %w", err)
	}
	defer unix.Close(fd)
	discard := unix.SockaddrInet4{Port: 9, Addr: [4]byte{127, 0, 0, 1}} // nothing is sent
	if err := unix.Connect(fd, &discard); err != nil {
		return fmt.Errorf("connect a UDP socket: %w", err)
	}
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	if err != nil {
		return fmt.Errorf("get the cookie of a UDP socket: %w", err)
	}
	sockets, err := list(unix.AF_INET)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	own := slices.IndexFunc(sockets, func(c connected) bool { return c.id.cookie() == cookie })
	if own < 0 {
		return errors.New("the kernel does not list UDP sockets: it needs CONFIG_INET_UDP_DIAG")
	}
	err = sockets[own].destroy()
	if errors.Is(err, unix.EOPNOTSUPP) {
		return errors.New("the kernel does not destroy sockets: it needs CONFIG_INET_DIAG_DESTROY")
	}
	return err
}
