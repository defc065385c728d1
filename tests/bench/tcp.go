package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/model"
)

const (
	tcpRounds  = 300
	tcpBatch   = 200 // connections
	bulkRounds = 250
	bulkBatch  = 24 << 20 // bytes
	bulkWrite  = 128 << 10
)

// measureTCP compares connections through a ClusterIP, in a cgroup that Beeline
// serves, with connections straight to the endpoints in one without any program.
func measureTCP(ctx context.Context, box *sandbox) (samples, error) {
	l := load{services: 10000, endpoints: destinations, protocol: model.TCP}
	groups := make(map[string]string)
	for _, name := range []string{plain, beeline} {
		var err error
		if groups[name], err = box.subgroup(name); err != nil {
			return nil, err
		}
	}
	if _, err := serve(ctx, box, groups[beeline], l.update()); err != nil {
		return nil, err
	}
	if err := addLocalEndpoints(); err != nil {
		return nil, err
	}
	// More connections than one batch may wait to be accepted.
	if err := os.WriteFile("/proc/sys/net/core/somaxconn", []byte("65535"), 0); err != nil {
		return nil, err
	}
	s := make(samples)
	for _, family := range model.Families {
		if err := measureBulk(ctx, s, groups, l, family); err != nil {
			return nil, err
		}
	}
	server, err := acceptAll()
	if err != nil {
		return nil, err
	}
	// The server's thread and the client's each have a CPU and a P to themselves.
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 2)
	if err := quiet(); err != nil {
		return nil, err
	}
	for _, family := range model.Families {
		if err := measureRate(ctx, s, server, groups, l, family); err != nil {
			return nil, err
		}
	}
	return s, nil
}

const tcpService = 4321 // one without affinity

// measureRate measures connections made and closed in a second.
func measureRate(ctx context.Context, s samples, server *acceptor, groups map[string]string, l load, family model.Family) error {
	contestantOf := func(name string, to *targets) contestant {
		return contestant{name, func() (float64, error) {
			if err := join(groups[name]); err != nil {
				return 0, err
			}
			return server.connectRate(to, family)
		}}
	}
	return interleave(ctx, tcpRounds, []contestant{
		contestantOf(plain, toEndpoints(l, tcpService, family)),
		contestantOf(beeline, toService(l, tcpService, family)),
	}, func(m measured) {
		s.add(of("tcp/rate/plain", family), m[plain])
		s.add(of("tcp/rate", family), m[beeline]/m[plain])
	})
}

// acceptor is a server that closes what it accepts.
type acceptor struct {
	accepted atomic.Uint64
	expected uint64
}

// acceptAll listens on the endpoints' port, on every address, until the process
// ends.
func acceptAll() (*acceptor, error) {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a socket: %w", err)
	}
	// Connections of the measurement before may be closing.
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return nil, fmt.Errorf("listen on port %d: %w", endpointPort, err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet6{Port: endpointPort}); err != nil {
		return nil, fmt.Errorf("bind to port %d: %w", endpointPort, err)
	}
	if err := unix.Listen(fd, 65535); err != nil {
		return nil, fmt.Errorf("listen on port %d: %w", endpointPort, err)
	}
	a := new(acceptor)
	go func() {
		runtime.LockOSThread()
		for {
			c, _, err := unix.Accept(fd)
			if err != nil {
				continue // a client that has given up
			}
			unix.Close(c)
			a.accepted.Add(1)
		}
	}()
	return a, nil
}

// connectRate connects and closes, by a reset, so that no closed connection
// lingers on and the connection itself costs as little as it can. It returns when
// the server is done too.
func (a *acceptor) connectRate(to *targets, family model.Family) (perSecond float64, err error) {
	pick := newPicker()
	linger := unix.Linger{Onoff: 1}
	start := time.Now()
	for range tcpBatch {
		t := pick.from(to)
		fd, _, errno := unix.RawSyscall(unix.SYS_SOCKET, uintptr(domain(family)), unix.SOCK_STREAM, 0)
		if errno != 0 {
			return 0, fmt.Errorf("make a socket: %w", errno)
		}
		unix.RawSyscall6(unix.SYS_SETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_LINGER,
			uintptr(unsafe.Pointer(&linger)), unsafe.Sizeof(linger), 0)
		_, _, errno = unix.RawSyscall(unix.SYS_CONNECT, fd, uintptr(unsafe.Pointer(t)), t.len)
		if errno != 0 {
			return 0, fmt.Errorf("connect: %w", errno)
		}
		unix.RawSyscall(unix.SYS_CLOSE, fd, 0, 0)
	}
	took := time.Since(start)
	a.expected += tcpBatch
	for deadline := start.Add(10 * time.Second); a.accepted.Load() < a.expected; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return 0, fmt.Errorf("the server has accepted %d connections of %d", a.accepted.Load(), a.expected)
		}
	}
	return tcpBatch / took.Seconds(), nil
}

// measureBulk measures bytes in a second over one connection that stays open.
func measureBulk(ctx context.Context, s samples, groups map[string]string, l load, family model.Family) error {
	listener, err := net.Listen("tcp", fmt.Sprintf(":%d", endpointPort))
	if err != nil {
		return err
	}
	defer listener.Close()
	go acknowledge(listener)
	var list []contestant
	for name, to := range map[string]netip.AddrPort{
		plain:   netip.AddrPortFrom(l.endpoint(tcpService, 0, family), endpointPort),
		beeline: netip.AddrPortFrom(l.clusterIP(tcpService, family), servicePort),
	} {
		if err := join(groups[name]); err != nil {
			return err
		}
		conn, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(to))
		if err != nil {
			return err
		}
		defer conn.Close()
		list = append(list, contestant{name, func() (float64, error) { return send(conn) }})
	}
	return interleave(ctx, bulkRounds, list, func(m measured) {
		s.add(of("tcp/bulk/plain", family), m[plain]/1e9)
		s.add(of("tcp/bulk", family), m[beeline]/m[plain])
	})
}

// acknowledge answers each batch that it has received with one byte.
func acknowledge(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			buf := make([]byte, bulkWrite)
			for left := bulkBatch; ; {
				n, err := conn.Read(buf)
				if err != nil {
					return
				}
				if left -= n; left == 0 {
					left = bulkBatch
					if _, err := conn.Write(buf[:1]); err != nil {
						return
					}
				}
			}
		}()
	}
}

// send sends a batch and waits until it has been received.
func send(conn *net.TCPConn) (bytesPerSecond float64, err error) {
	buf := make([]byte, bulkWrite)
	start := time.Now()
	for sent := 0; sent < bulkBatch; sent += len(buf) {
		if _, err := conn.Write(buf); err != nil {
			return 0, err
		}
	}
	if _, err := io.ReadFull(conn, buf[:1]); err != nil {
		return 0, err
	}
	return bulkBatch / time.Since(start).Seconds(), nil
}
