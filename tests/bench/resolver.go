package main

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/model"
)

const (
	resolverRounds = 400
	resolverBatch  = 200
)

// What a resolver does for a query: it makes a socket, asks, awaits the answer and
// closes the socket. It connects the socket or it does not.
const (
	unconnectedQuery = "resolver"
	connectedQuery   = "resolver/connect"
)

// measureResolver measures the thread CPU time of a query by a socket of its own, at a
// ClusterIP and straight at the endpoints. The server's part counts as well, and is
// the same.
func measureResolver(ctx context.Context, box *sandbox) ([]samples, error) {
	l := load{services: 10000, endpoints: destinations, protocol: model.UDP}
	groups, err := servedGroups(ctx, box, l, plain, beeline)
	if err != nil {
		return nil, err
	}
	if err := addLocalEndpoints(); err != nil {
		return nil, err
	}
	if err := join(groups[plain]); err != nil {
		return nil, err
	}
	return measureFamilies(func(s samples, family model.Family) error {
		server, err := newResponder(family)
		if err != nil {
			return err
		}
		defer unix.Close(int(server.fd))
		return measureQueries(ctx, s, server, groups, l, family)
	})
}

func measureQueries(ctx context.Context, s samples, server *responder, groups map[string]string, l load, family model.Family) error {
	const service = 4321 // one without affinity
	var list []contestant
	for _, kind := range []string{unconnectedQuery, connectedQuery} {
		for _, c := range []struct {
			name, group string
			to          *targets
		}{
			{"straight/plain", plain, toEndpoints(l, service, family)},
			{"straight/beeline", beeline, toEndpoints(l, service, family)},
			{"service/beeline", beeline, toService(l, service, family)},
		} {
			list = append(list, contestant{kind + "/" + c.name, func() (float64, error) {
				if err := join(groups[c.group]); err != nil {
					return 0, err
				}
				return server.queries(c.to, kind == connectedQuery, family)
			}})
		}
	}
	return interleave(ctx, resolverRounds, list, func(t measured) {
		for _, kind := range []string{unconnectedQuery, connectedQuery} {
			straight := t[kind+"/straight/plain"]
			s.add(of(kind+"/plain", family), straight)
			s.add(of(kind+"/none", family), t[kind+"/straight/beeline"]-straight)
			s.add(of(kind+"/service", family), t[kind+"/service/beeline"]-straight)
			s.add(of(kind+"/times", family), t[kind+"/service/beeline"]/straight)
		}
	})
}

// responder is a UDP server on the endpoints' port, of all their addresses. It answers
// when it is told to, so that client and server need one thread.
type responder struct {
	fd      uintptr
	msg     unix.Msghdr
	iov     unix.Iovec
	peer    sockaddr
	data    [64]byte
	control [64]byte
}

func newResponder(family model.Family) (*responder, error) {
	fd, err := unix.Socket(domain(family), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("make a socket: %w", err)
	}
	// The answer leaves from the address that was asked.
	if family == model.IPv4 {
		err = unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_PKTINFO, 1)
		if err == nil {
			err = unix.Bind(fd, &unix.SockaddrInet4{Port: endpointPort})
		}
	} else {
		// The addresses are this machine's by a route, and no device has them.
		err = errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_RECVPKTINFO, 1),
			unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_FREEBIND, 1))
		if err == nil {
			err = unix.Bind(fd, &unix.SockaddrInet6{Port: endpointPort})
		}
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("set up the server: %w", err)
	}
	return &responder{fd: uintptr(fd)}, nil
}

// answer sends the datagram that has arrived back. The kernel delivers what is sent to
// an address of this machine before the system call ends.
func (r *responder) answer() error {
	r.iov.Base, r.iov.Len = &r.data[0], uint64(len(r.data))
	r.msg = unix.Msghdr{
		Name: &r.peer.raw[0], Namelen: uint32(len(r.peer.raw)),
		Iov: &r.iov, Iovlen: 1,
		Control: &r.control[0], Controllen: uint64(len(r.control)),
	}
	n, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, r.fd, uintptr(unsafe.Pointer(&r.msg)), 0)
	if errno != 0 {
		return fmt.Errorf("the server receives: %w", errno)
	}
	r.iov.Len = uint64(n)
	if _, _, errno = unix.RawSyscall(unix.SYS_SENDMSG, r.fd, uintptr(unsafe.Pointer(&r.msg)), 0); errno != 0 {
		return fmt.Errorf("the server answers: %w", errno)
	}
	return nil
}

// queries makes a batch of queries, each by a socket of its own.
func (r *responder) queries(to *targets, connected bool, family model.Family) (nsPerQuery float64, err error) {
	pick := newPicker()
	start := threadTime()
	for range resolverBatch {
		if err := r.query(pick.from(to), connected, family); err != nil {
			return 0, err
		}
	}
	return float64(threadTime()-start) / resolverBatch, nil
}

// query asks once and checks who answers, as resolvers do.
func (r *responder) query(to *sockaddr, connected bool, family model.Family) error {
	var data [64]byte
	var from sockaddr
	fd, _, errno := unix.RawSyscall(unix.SYS_SOCKET, uintptr(domain(family)), unix.SOCK_DGRAM, 0)
	if errno != 0 {
		return fmt.Errorf("make a socket: %w", errno)
	}
	name, nameLen := uintptr(unsafe.Pointer(to)), to.len
	if connected {
		_, _, errno = unix.RawSyscall(unix.SYS_CONNECT, fd, name, nameLen)
		if errno != 0 {
			return fmt.Errorf("connect: %w", errno)
		}
		name, nameLen = 0, 0
	}
	_, _, errno = unix.RawSyscall6(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(&data)), uintptr(len(data)), 0, name, nameLen)
	if errno != 0 {
		return fmt.Errorf("send: %w", errno)
	}
	if err := r.answer(); err != nil {
		return err
	}
	fromLen := uint32(len(from.raw))
	_, _, errno = unix.RawSyscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&data)), uintptr(len(data)),
		unix.MSG_DONTWAIT, uintptr(unsafe.Pointer(&from)), uintptr(unsafe.Pointer(&fromLen)))
	if errno != 0 {
		return fmt.Errorf("receive: %w", errno)
	}
	unix.RawSyscall(unix.SYS_CLOSE, fd, 0, 0)
	if from.raw != to.raw {
		return fmt.Errorf("the answer is of %x, not of %x", from.raw, to.raw)
	}
	return nil
}
