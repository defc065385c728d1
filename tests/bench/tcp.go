package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/model"
)

const (
	tcpRounds  = 300
	tcpBatch   = 200 // connections
	bulkRounds = 250
	bulkBatch  = 24 << 20 // bytes
	bulkWrite  = 128 << 10
	serverCPU  = 0 // the client's is the last
)

// measureTCP compares connections through a ClusterIP, in a cgroup that Beeline
// serves, with connections straight to the endpoints in one without any program.
func measureTCP(ctx context.Context, box *sandbox) ([]samples, error) {
	l := load{services: 10000, endpoints: destinations, protocol: model.TCP}
	groups, err := servedGroups(ctx, box, l, plain, beeline, counted)
	if err != nil {
		return nil, err
	}
	if err := serveCounted(ctx, box, groups[counted], l); err != nil {
		return nil, err
	}
	if err := addLocalEndpoints(); err != nil {
		return nil, err
	}
	if err := tuneTCP(); err != nil {
		return nil, err
	}
	listener, err := listenAll()
	if err != nil {
		return nil, err
	}
	if err := quiet(); err != nil {
		return nil, err
	}
	s := make(samples)
	for _, family := range model.Families {
		if err := measureBulk(ctx, s, listener, groups, l, family); err != nil {
			return nil, err
		}
	}
	server := new(acceptor)
	server.acceptAll(listener)
	for _, family := range model.Families {
		if err := measureRate(ctx, s, server, groups, l, family); err != nil {
			return nil, err
		}
	}
	return []samples{s}, nil
}

// counted is the cgroup that a Beeline serves which counts traffic.
const counted = "counted"

// serveCounted serves the load in a cgroup, with traffic counted.
func serveCounted(ctx context.Context, box *sandbox, cgroup string, l load) error {
	bpffs := filepath.Join(box.bpffs, counted)
	if err := os.Mkdir(bpffs, 0o700); err != nil {
		return err
	}
	sizes := bpfmap.DefaultSizes
	sizes.CountTraffic = true
	_, err := serveWith(ctx, datapath.Options{BPFFS: bpffs, Cgroup: cgroup, Sizes: sizes, LocalityIdle: time.Hour, TrafficSampling: 1}, l.update())
	return err
}

// tuneTCP lets a whole batch wait to be accepted, and keeps no connection in
// TIME_WAIT, or ports would run out. It concerns this network namespace only.
func tuneTCP() error {
	return errors.Join(
		sysctl("core/somaxconn", "65535"),
		sysctl("ipv4/tcp_max_tw_buckets", "0"))
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
		contestantOf(counted, toService(l, tcpService, family)),
	}, func(m measured) {
		s.add(of("tcp/rate/plain", family), m[plain])
		s.add(of("tcp/rate", family), m[beeline]/m[plain])
		s.add(of("tcp/rate/counted", family), m[counted]/m[beeline])
	})
}

// acceptor is a server that closes what it accepts.
type acceptor struct {
	accepted atomic.Uint64
	expected uint64
}

// listenAll listens on the endpoints' port, on every address, until the process
// ends.
func listenAll() (int, error) {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("make a socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet6{Port: endpointPort}); err != nil {
		return -1, fmt.Errorf("bind to port %d: %w", endpointPort, err)
	}
	if err := unix.Listen(fd, 65535); err != nil {
		return -1, fmt.Errorf("listen on port %d: %w", endpointPort, err)
	}
	return fd, nil
}

// acceptAll accepts and closes until the process ends.
func (a *acceptor) acceptAll(listener int) {
	go func() {
		if err := pin(serverCPU); err != nil {
			return // the client will miss it
		}
		for {
			c, _, err := unix.Accept(listener)
			if err != nil {
				continue // a client that has given up
			}
			unix.Close(c)
			a.accepted.Add(1)
		}
	}()
}

// await waits until a batch of that many connections more has been accepted.
func (a *acceptor) await(batch uint64) error {
	a.expected += batch
	for start := time.Now(); a.accepted.Load() < a.expected; time.Sleep(time.Millisecond) {
		if time.Since(start) > 10*time.Second {
			return fmt.Errorf("the server has accepted %d connections of %d", a.accepted.Load(), a.expected)
		}
	}
	return nil
}

// connectRate connects and closes. It returns when the server is done too.
func (a *acceptor) connectRate(to *targets, family model.Family) (perSecond float64, err error) {
	pick := newPicker()
	start := time.Now()
	for range tcpBatch {
		t := pick.from(to)
		fd, _, errno := unix.RawSyscall(unix.SYS_SOCKET, uintptr(domain(family)), unix.SOCK_STREAM, 0)
		if errno != 0 {
			return 0, fmt.Errorf("make a socket: %w", errno)
		}
		_, _, errno = unix.RawSyscall(unix.SYS_CONNECT, fd, uintptr(unsafe.Pointer(t)), t.len)
		if errno != 0 {
			return 0, fmt.Errorf("connect: %w", errno)
		}
		unix.RawSyscall(unix.SYS_CLOSE, fd, 0, 0)
	}
	took := time.Since(start)
	return tcpBatch / took.Seconds(), a.await(tcpBatch)
}

// measureBulk measures bytes in a second over one connection that stays open.
func measureBulk(ctx context.Context, s samples, listener int, groups map[string]string, l load, family model.Family) error {
	var list []contestant
	for name, to := range map[string]sockaddr{
		plain:   newSockaddr(l.endpoint(tcpService, 0, family), endpointPort),
		beeline: newSockaddr(l.clusterIP(tcpService, family), servicePort),
	} {
		if err := join(groups[name]); err != nil {
			return err
		}
		client, server, err := connection(listener, to, family)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		defer unix.Close(client) // ends the server's thread
		go acknowledge(server)
		list = append(list, contestant{name, func() (float64, error) { return send(client) }})
	}
	return interleave(ctx, bulkRounds, list, func(m measured) {
		s.add(of("tcp/bulk/plain", family), m[plain]/1e9)
		s.add(of("tcp/bulk", family), m[beeline]/m[plain])
	})
}

// connection returns both ends of a connection to the address.
func connection(listener int, to sockaddr, family model.Family) (client, server int, err error) {
	client, err = unix.Socket(domain(family), unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, -1, fmt.Errorf("make a socket: %w", err)
	}
	_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(client), uintptr(unsafe.Pointer(&to)), to.len)
	if errno != 0 {
		return -1, -1, errors.Join(fmt.Errorf("connect: %w", errno), unix.Close(client))
	}
	server, _, err = unix.Accept(listener)
	if err != nil {
		return -1, -1, errors.Join(fmt.Errorf("accept: %w", err), unix.Close(client))
	}
	return client, server, nil
}

// acknowledge answers each batch that it has received with one byte.
func acknowledge(conn int) {
	defer unix.Close(conn)
	if err := pin(serverCPU); err != nil {
		return
	}
	buf := make([]byte, bulkWrite)
	for left := bulkBatch; ; {
		n, err := unix.Read(conn, buf)
		if err != nil || n == 0 {
			return
		}
		if left -= n; left == 0 {
			left = bulkBatch
			if _, err := unix.Write(conn, buf[:1]); err != nil {
				return
			}
		}
	}
}

// send sends a batch and waits until it has been received.
func send(conn int) (bytesPerSecond float64, err error) {
	buf := make([]byte, bulkWrite)
	start := time.Now()
	for sent := 0; sent < bulkBatch; {
		n, err := unix.Write(conn, buf[:min(len(buf), bulkBatch-sent)])
		if err != nil {
			return 0, fmt.Errorf("send: %w", err)
		}
		sent += n
	}
	if n, err := unix.Read(conn, buf[:1]); n != 1 {
		return 0, errors.Join(errors.New("the server has not received a batch"), err)
	}
	return bulkBatch / time.Since(start).Seconds(), nil
}
