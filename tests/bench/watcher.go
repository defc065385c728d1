package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// watchPause is the time between two looks at where connect() leads.
	watchPause   = 20 * time.Microsecond
	watchTimeout = 10 * time.Second
)

// watcher tells which endpoint connect() leads to: endpoints are addresses of this
// machine, so the socket's own address is the endpoint's.
type watcher struct {
	fd  int
	ask chan question
}

type question struct {
	ctx    context.Context
	vip    sockaddr
	old    netip.Addr
	answer chan<- sighting
}

// sighting is when connect() no longer led to the former endpoint.
type sighting struct {
	at    time.Time
	since time.Duration // since the look before
	err   error
}

// newWatcher makes a watcher with a socket in the cgroup of this process.
func newWatcher() (*watcher, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a socket: %w", err)
	}
	w := &watcher{fd: fd, ask: make(chan question)}
	go w.run()
	return w, nil
}

func (w *watcher) close() {
	close(w.ask)
	unix.Close(w.fd)
}

// run watches on a thread of its own whose sleeps end on time.
func (w *watcher) run() {
	runtime.LockOSThread()
	// It fails for a wrong option only.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	for q := range w.ask {
		q.answer <- w.watch(q)
	}
}

// await watches until connect() to vip leads elsewhere than to old.
func (w *watcher) await(ctx context.Context, vip sockaddr, old netip.Addr) <-chan sighting {
	answer := make(chan sighting, 1)
	w.ask <- question{ctx, vip, old, answer}
	return answer
}

func (w *watcher) watch(q question) sighting {
	pause := unix.NsecToTimespec(watchPause.Nanoseconds())
	last := time.Now()
	for deadline := last.Add(watchTimeout); last.Before(deadline); {
		addr, err := w.reached(&q.vip)
		if err == nil {
			err = q.ctx.Err()
		}
		if err != nil {
			return sighting{err: err}
		}
		now := time.Now()
		if addr != q.old {
			return sighting{at: now, since: now.Sub(last)}
		}
		last = now
		_ = unix.Nanosleep(&pause, nil) // a signal may end it early
	}
	return sighting{err: fmt.Errorf("connect() still leads to %s after %s", q.old, watchTimeout)}
}

// reached connects to vip and returns the endpoint it was led to.
func (w *watcher) reached(vip *sockaddr) (netip.Addr, error) {
	// Reset, or the socket would keep its own address.
	unspecified := [unix.SizeofSockaddrInet4]byte{}
	_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(w.fd), uintptr(unsafe.Pointer(&unspecified)), unsafe.Sizeof(unspecified))
	if errno != 0 {
		return netip.Addr{}, fmt.Errorf("reset a socket: %w", errno)
	}
	_, _, errno = unix.RawSyscall(unix.SYS_CONNECT, uintptr(w.fd), uintptr(unsafe.Pointer(vip)), vip.len)
	if errno != 0 {
		return netip.Addr{}, fmt.Errorf("connect: %w", errno)
	}
	own, err := unix.Getsockname(w.fd)
	if err != nil {
		return netip.Addr{}, err
	}
	in, ok := own.(*unix.SockaddrInet4)
	if !ok {
		return netip.Addr{}, errors.New("the socket has no IPv4 address")
	}
	return netip.AddrFrom4(in.Addr), nil
}
